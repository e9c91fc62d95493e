"""The forward pass of a linear layer with a LoRA beside it, `W x + scaling B A x`, in as few passes over memory as it takes.

peft makes `B A x`, the same times the scaling, and the sum, each a tensor as large as what the layer gives; and where `x` is in
bf16 it casts it to fp32, which autocast takes back. Here the second product adds to the first, which also rounds once in place of
three times. In other precisions, such as float64, peft computes.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from peft.tuners.lora import Linear
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import _get_current_dispatch_mode

from gym_torch.kernels.kernel_trials import watched
from gym_torch.kernels.linear_products import TORCH, chosen, forward, to_input
from gym_torch.kernels.shared_input_casts import LastCast
from gym_torch.patched_forward import computes_the_same, plain, replace


def join_products(model: nn.Module) -> None:
    """Have the LoRA layers of peft in a model add their products as they are made, where nothing else is asked."""
    for layer in model.modules():
        if type(layer) is Linear and plain(layer):
            replace(layer, _forward)


def _forward(layer: Linear, given: Tensor, *more: Any, **named: Any) -> Tensor:
    names = _pairs(layer)
    if more or named or not names or watched() or not all(_unseen(layer.lora_B[name]) for name in names):
        return cast(Tensor, type(layer).forward(layer, given, *more, **named))
    weights = [pair[name].weight for name in names for pair in (layer.lora_A, layer.lora_B)]
    rounded = torch.is_autocast_enabled(given.device.type)
    if not rounded and {given.dtype, *(weight.dtype for weight in weights)} != {torch.float32}:
        return cast(Tensor, type(layer).forward(layer, given))
    base = cast(nn.Linear, layer.base_layer)
    alone = type(base) is nn.Linear and _unseen(base)
    first, *rest = names
    before, after = cast(nn.Linear, layer.lora_A[first]), cast(nn.Linear, layer.lora_B[first])
    whole = alone and _unseen(before) and type(layer.lora_dropout[first]) is nn.Identity
    if whole and _constant(base, None if rounded else given.dtype):
        parts: tuple[Tensor | None, ...] = given, base.bias, before.weight, after.weight
        parts = _rounded(base, *parts) if rounded else parts
        out = cast(Tensor, _Whole.apply(*parts, base.weight, layer.scaling[first]))  # type: ignore[no-untyped-call]
    else:
        out, rest = base(given), names
    for name in rest:
        out = _with_pair(layer, name, given, out, own=alone or name != first)
    return out


def _with_pair(layer: Linear, name: str, given: Tensor, out: Tensor, own: bool) -> Tensor:
    """Return what comes `out` of a layer with the product of one more pair; in its place where it is our `own`."""
    second = cast(nn.Linear, layer.lora_B[name])
    small: Tensor = layer.lora_A[name](layer.lora_dropout[name](given))
    if out.dtype != small.dtype:  # a base that is not rounded
        return (out + second(small) * layer.scaling[name]).to(out.dtype)
    weight = second.weight.to(small.dtype)
    return cast(Tensor, _Sum.apply(out if own else out.clone(), small, weight, layer.scaling[name]))  # type: ignore[no-untyped-call]


def _rounded(base: nn.Linear, given: Tensor | None, *weights: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return all in the precision of autocast; layers with one input share its cast, as `LastCast` has it."""
    for hook in base._forward_pre_hooks.values():
        (given,) = hook(base, (given,)) or (given,)
    kind = torch.get_autocast_dtype(base.weight.device.type)
    return tuple(None if each is None else each.to(kind) for each in (given, *weights))


def _add(out: Tensor, left: Tensor, right: Tensor, scaling: float) -> Tensor:
    """Return `out + scaling left right`, in the place of `out` unless somebody keeps what operations give.

    Selective recomputation does: it hands the product that it kept to the second pass, which would add to it once more.
    """
    if _get_current_dispatch_mode() is not None:
        return torch.addmm(out, left, right, alpha=scaling)
    return out.addmm_(left, right, alpha=scaling)


class _Whole(torch.autograd.Function):
    """`given base^T + bias + scaling given first^T second^T` for a constant base; gradients add up as products are made, too.

    `given [.., inputs]`, `base [outputs, inputs]`, `first [rank, inputs]`, `second [outputs, rank]`, of one dtype but for the
    base, which is rounded to it forward and back, so that no copy is kept. What comes out is no view: some models clamp it in
    place.
    """

    @staticmethod
    def forward(
        ctx: Any, given: Tensor, bias: Tensor | None, first: Tensor, second: Tensor, base: Tensor, scaling: float
    ) -> Tensor:
        rows = given.reshape(-1, given.shape[-1])
        products = chosen(rows, base, given.dtype) or TORCH
        with torch.autocast(given.device.type, enabled=False):
            small = rows @ first.T
            if products.summed:
                out = products.summed([small, rows], [second.T, base.T], scaling, bias)
            else:
                out = _add(forward(products, rows, base, bias), small, second.T, scaling)
        ctx.save_for_backward(
            base, first, second, rows if ctx.needs_input_grad[2] else None, small if ctx.needs_input_grad[3] else None
        )
        ctx.products, ctx.scaling, ctx.shape = products, scaling, given.shape
        found: Tensor = torch.ops.aten._unsafe_view(out, [*given.shape[:-1], len(base)])
        return found

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, by_out: Tensor) -> tuple[Tensor | None, ...]:
        base, first, second, rows, small = ctx.saved_tensors
        with torch.autocast(by_out.device.type, enabled=False):
            by_rows = by_out.reshape(-1, len(base)).contiguous()
            by_small = (by_rows @ second).mul_(ctx.scaling)
            by_given = None
            if ctx.needs_input_grad[0]:
                if ctx.products.summed:
                    by_given = ctx.products.summed([by_small, by_rows], [first, base], 1.0, None)
                else:
                    by_given = _add(to_input(ctx.products, by_rows, base), by_small, first, 1.0)
                by_given = by_given.view(ctx.shape)
            by_first = None if rows is None else by_small.T @ rows
            by_second = None if small is None else (by_rows.T @ small).mul_(ctx.scaling)
        return by_given, None, by_first, by_second, None, None


class _Sum(torch.autograd.Function):
    """`out + scaling small weight^T`, in the place of `out [.., outputs]`; `small [.., rank]`, `weight [outputs, rank]`."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, small: Tensor, weight: Tensor, scaling: float) -> Tensor:
        ctx.save_for_backward(small, weight)
        ctx.scaling = scaling
        rows = out.view(-1, len(weight))
        found = _add(rows, small.reshape(-1, small.shape[-1]), weight.T, scaling)
        if found is not rows:
            other: Tensor = torch.ops.aten._unsafe_view(found, out.shape)
            return other
        ctx.mark_dirty(out)
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, by_out: Tensor) -> tuple[Tensor | None, ...]:
        small, weight = ctx.saved_tensors
        rows, given = by_out.reshape(-1, by_out.shape[-1]), small.reshape(-1, small.shape[-1])
        by_small = (rows @ weight).mul_(ctx.scaling).view(small.shape) if ctx.needs_input_grad[1] else None
        by_weight = (rows.T @ given).mul_(ctx.scaling) if ctx.needs_input_grad[2] else None
        return by_out, by_small, by_weight, None


def _pairs(layer: Linear) -> list[str]:
    """Return the names of the plain pairs that work in a layer, in order; none where anything else does."""
    names = [name for name in layer.active_adapters if name in layer.lora_A]
    if (
        layer.disable_adapters
        or layer.merged
        or any(name in layer.lora_variant or layer.lora_bias.get(name) for name in names)
    ):
        return []
    return names


def _constant(layer: nn.Module, dtype: torch.dtype | None) -> bool:
    """Whether the parameters of a layer do not train, and are of a precision where one is named."""
    return not any(part.requires_grad or dtype not in (None, part.dtype) for part in layer.parameters())


def _unseen(layer: nn.Module) -> bool:
    """Whether what comes out of a layer is its product and nobody else looks at it."""
    hooks = layer._forward_hooks, layer._backward_hooks, layer._backward_pre_hooks
    casts = all(type(hook) is LastCast for hook in layer._forward_pre_hooks.values())
    return casts and not any(hooks) and computes_the_same(layer)

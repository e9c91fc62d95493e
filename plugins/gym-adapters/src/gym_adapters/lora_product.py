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

from gym_torch.model.kernel_trials import watched
from gym_torch.model.patched_forward import plain, replace
from gym_torch.model.shared_input_casts import LastCast


def join_products(model: nn.Module) -> None:
    """Have the LoRA layers of peft in a model add their products as they are made, where nothing else is asked."""
    for layer in model.modules():
        if type(layer) is Linear and plain(layer):
            replace(layer, _forward)


def _forward(layer: Linear, given: Tensor, *more: Any, **named: Any) -> Tensor:
    name = _one_pair(layer)
    rounded = torch.is_autocast_enabled(given.device.type)
    able = (rounded or given.dtype == torch.float32) and not watched()
    if more or named or name is None or not (able and _unseen(layer.lora_B[name])):
        return cast(Tensor, type(layer).forward(layer, given, *more, **named))
    base = cast(nn.Linear, layer.base_layer)
    first, second = cast(nn.Linear, layer.lora_A[name]), cast(nn.Linear, layer.lora_B[name])
    scaling, alone = layer.scaling[name], type(base) is nn.Linear and _unseen(base)
    whole = alone and not rounded and _unseen(first) and type(layer.lora_dropout[name]) is nn.Identity
    if whole and _constant(base, given.dtype) and given.dtype == first.weight.dtype == second.weight.dtype:
        pair = first.weight, second.weight
        return cast(Tensor, _Whole.apply(given, base.weight, base.bias, *pair, scaling))  # type: ignore[no-untyped-call]
    out: Tensor = base(given)
    small: Tensor = first(layer.lora_dropout[name](given))
    if out.dtype != small.dtype:  # a base that is not rounded
        return (out + second(small) * scaling).to(out.dtype)
    weight = second.weight.to(small.dtype)
    return cast(Tensor, _Sum.apply(out if alone else out.clone(), small, weight, scaling))  # type: ignore[no-untyped-call]


class _Whole(torch.autograd.Function):
    """`given base^T + bias + scaling given first^T second^T` for a constant base; gradients add up as products are made, too.

    `given [.., inputs]`, `base [outputs, inputs]`, `first [rank, inputs]`, `second [outputs, rank]`.
    """

    @staticmethod
    def forward(
        ctx: Any, given: Tensor, base: Tensor, bias: Tensor | None, first: Tensor, second: Tensor, scaling: float
    ) -> Tensor:
        rows = given.reshape(-1, given.shape[-1])
        small = rows @ first.T
        out = rows @ base.T if bias is None else torch.addmm(bias, rows, base.T)
        out.addmm_(small, second.T, alpha=scaling)
        ctx.save_for_backward(rows, base, first, second, small)
        ctx.scaling = scaling
        return out.view(*given.shape[:-1], -1)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, by_out: Tensor) -> tuple[Tensor | None, ...]:
        rows, base, first, second, small = ctx.saved_tensors
        by_rows = by_out.reshape(-1, by_out.shape[-1])
        by_small = (by_rows @ second).mul_(ctx.scaling)
        by_given = (by_rows @ base).addmm_(by_small, first) if ctx.needs_input_grad[0] else None
        by_first = by_small.T @ rows if ctx.needs_input_grad[3] else None
        by_second = (by_rows.T @ small).mul_(ctx.scaling) if ctx.needs_input_grad[4] else None
        shaped = by_given if by_given is None else by_given.view(*by_out.shape[:-1], -1)
        return shaped, None, None, by_first, by_second, None


class _Sum(torch.autograd.Function):
    """`out + scaling small weight^T`, in the place of `out [.., outputs]`; `small [.., rank]`, `weight [outputs, rank]`."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, small: Tensor, weight: Tensor, scaling: float) -> Tensor:
        ctx.save_for_backward(small, weight)
        ctx.scaling = scaling
        ctx.mark_dirty(out)
        out.view(-1, out.shape[-1]).addmm_(small.reshape(-1, small.shape[-1]), weight.T, alpha=scaling)
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, by_out: Tensor) -> tuple[Tensor | None, ...]:
        small, weight = ctx.saved_tensors
        rows, given = by_out.reshape(-1, by_out.shape[-1]), small.reshape(-1, small.shape[-1])
        by_small = (rows @ weight).mul_(ctx.scaling).view(small.shape) if ctx.needs_input_grad[1] else None
        by_weight = (rows.T @ given).mul_(ctx.scaling) if ctx.needs_input_grad[2] else None
        return by_out, by_small, by_weight, None


def _one_pair(layer: Linear) -> str | None:
    """Return the name of the one plain pair that works in a layer, or None."""
    if layer.disable_adapters or layer.merged or len(layer.active_adapters) != 1:
        return None
    (name,) = layer.active_adapters
    other = name in layer.lora_variant or layer.lora_bias.get(name)
    return name if name in layer.lora_A and not other else None


def _constant(layer: nn.Module, dtype: torch.dtype) -> bool:
    """Whether the parameters of a layer are of a precision and do not train."""
    return all(part.dtype == dtype and not part.requires_grad for part in layer.parameters())


def _unseen(layer: nn.Module) -> bool:
    """Whether what comes out of a layer is its product and nobody else looks at it."""
    hooks = layer._forward_hooks, layer._backward_hooks, layer._backward_pre_hooks
    casts = all(type(hook) is LastCast for hook in layer._forward_pre_hooks.values())
    return casts and not any(hooks) and "forward" not in vars(layer)

"""The forward pass of a linear layer with a LoRA beside it, `W x + scaling B A x`, in as few passes over memory as it takes.

peft makes `B A x`, the same times the scaling, and the sum, each a tensor as large as what the layer gives; and where `x` is in
bf16 it casts it to fp32, which autocast takes back. Here the second product adds to the first, which also rounds once in place of
three times. In fp32, where products take most of the time, peft computes, so that both agree to the last bit.
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
    """Have the LoRA layers of peft in a model add their products as they are made under autocast, where nothing else is asked."""
    for layer in model.modules():
        if type(layer) is Linear and plain(layer):
            replace(layer, _forward)


def _forward(layer: Linear, given: Tensor, *more: Any, **named: Any) -> Tensor:
    name = _one_pair(layer)
    rounded = torch.is_autocast_enabled(given.device.type) and not watched()
    if more or named or name is None or not (rounded and _unseen(layer.lora_B[name])):
        return cast(Tensor, type(layer).forward(layer, given, *more, **named))
    first, second = cast(nn.Linear, layer.lora_A[name]), cast(nn.Linear, layer.lora_B[name])
    out: Tensor = layer.base_layer(given)
    small: Tensor = first(layer.lora_dropout[name](given))
    if out.dtype != small.dtype:  # a base that is not rounded
        return (out + second(small) * layer.scaling[name]).to(out.dtype)
    alone = type(layer.base_layer) is nn.Linear and _unseen(layer.base_layer)
    weight = second.weight.to(small.dtype)
    return cast(Tensor, _Sum.apply(out if alone else out.clone(), small, weight, layer.scaling[name]))  # type: ignore[no-untyped-call]


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


def _unseen(layer: nn.Module) -> bool:
    """Whether what comes out of a layer is its product and nobody else looks at it."""
    hooks = layer._forward_hooks, layer._backward_hooks, layer._backward_pre_hooks
    casts = all(type(hook) is LastCast for hook in layer._forward_pre_hooks.values())
    return casts and not any(hooks) and "forward" not in vars(layer)

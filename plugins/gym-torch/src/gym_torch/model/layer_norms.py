"""Norms of layers whose weights are frozen in another precision than what they are given: torch refuses that on a CPU."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from gym_torch.model.mapped_weights import LOW
from gym_torch.patched_forward import plain, replace


def take_any_precision(model: nn.Module) -> None:
    """Have the norms of a model raise weights in bf16 or fp16 to fp32 for inputs of another precision.

    Such inputs come from embeddings that train, in fp32, and from bf16 products beside weights in fp16.
    """
    for module in model.modules():
        if isinstance(module, nn.LayerNorm) and _as_in_torch(module) and _low(module.weight):
            replace(module, _layer_norm)


def _as_in_torch(module: nn.LayerNorm) -> bool:
    return type(module).forward is nn.LayerNorm.forward and plain(module)


def _low(weight: Tensor | None) -> bool:
    return weight is not None and weight.dtype in LOW


def _layer_norm(module: nn.LayerNorm, input: Tensor) -> Tensor:
    weight, bias = module.weight, module.bias
    if input.dtype != weight.dtype:
        weight, bias = weight.float(), None if bias is None else bias.float()
    return functional.layer_norm(input, module.normalized_shape, weight, bias, module.eps)

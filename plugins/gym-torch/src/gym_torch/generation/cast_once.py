"""bf16 copies of weights, made once for all steps of a generation.

Autocast caches casts of trained weights only, and where neither a kernel nor a CUDA graph can read them. A frozen weight, as
below an adapter, is cast again in every step, which moves three times the bytes of the product itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gym_torch.kernels.linear_products import linear
from gym_torch.model.fp8_products import weights_kept
from gym_torch.patched_forward import computes_the_same


@contextmanager
def cast_once(model: PreTrainedModel) -> Iterator[None]:
    """Have the linear layers of a model use copies of their weights in the dtype of the enclosing autocast.

    Results are the same, bit for bit, and the `weight` of a layer stays as it is. Weights must not change in the block.
    Without autocast, and in a compiled model, nothing is done. The copies take half the bytes of the weights. Weights that
    are multiplied in fp8 are rounded once as well.
    """
    layers = _layers(model) if torch.is_autocast_enabled(model.device.type) else []
    before = [vars(layer).pop("forward", None) for layer in layers]
    try:
        for layer in layers:
            layer.forward = Rounded(layer)  # type: ignore[method-assign]
        with weights_kept(model):
            yield
    finally:
        for layer, forward in zip(layers, before, strict=True):
            vars(layer).pop("forward", None)
            if forward is not None:
                layer.forward = forward  # type: ignore[method-assign]


class Rounded:
    """The product of a linear layer with a copy of its weight."""

    def __init__(self, layer: nn.Linear) -> None:
        """Make the copy."""
        dtype = torch.get_autocast_dtype(layer.weight.device.type)
        self._layer, self.weight = layer, layer.weight.detach().to(dtype)
        self.bias = None if layer.bias is None else layer.bias.detach().to(dtype)

    def __call__(self, input: Tensor) -> Tensor:
        """Multiply."""
        if not torch.is_autocast_enabled(input.device.type):  # a part of the model that is not rounded
            return linear(input, self._layer.weight, self._layer.bias)
        return linear(input, self.weight, self.bias)


def _layers(model: PreTrainedModel) -> list[nn.Linear]:
    """Return the layers whose weights autocast would cast in every pass; none where a part of the model is compiled."""
    parts = list(model.modules())
    if any(part._compiled_call_impl is not None for part in parts):
        return []
    plain = [part for part in parts if type(part) is nn.Linear and computes_the_same(part)]
    return [part for part in plain if type(part.weight) is nn.Parameter and part.weight.dtype == torch.float32]

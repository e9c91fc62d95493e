"""Weights as torchao stores them, through the tensors of the library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torchao.quantization import (
    Float8WeightOnlyConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    PerAxis,
    PerGroup,
    quantize_,
)

from gym_quant.config.torchao import TorchAO
from gym_quant.load_time.fp8_zero_rows import zeros_kept
from gym_torch.quantization.weight_codec import WeightCodec


class TorchAoCodec(WeightCodec):
    """The tensors inside that of the library, by its names; what they are is the same for all weights of a shape."""

    def __init__(self, config: TorchAO) -> None:
        """Keep the options."""
        self.config = config
        self._kinds: dict[torch.Size, tuple[Any, Any]] = {}

    def encode(self, weight: Tensor) -> dict[str, Tensor]:
        """Return codes, scales and zero points."""
        held = self._quantized(weight.float())
        names, _ = held.__tensor_flatten__()
        stored = {name: getattr(held, name).contiguous() for name in names}
        return stored | {"qdata": zeros_kept(stored["qdata"])} if self.config.weights == "float8" else stored

    def decode(self, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Return the weights, fp32."""
        if shape not in self._kinds:
            like = self._quantized(torch.zeros(shape))
            self._kinds[shape] = type(like), like.__tensor_flatten__()[1]
        kind, context = self._kinds[shape]
        found: Tensor = kind.__tensor_unflatten__(dict(stored), context, shape, (shape[1], 1)).dequantize()
        return found

    def _quantized(self, weight: Tensor) -> Any:
        """Return the tensor of the library that holds a weight."""
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        layer.weight = nn.Parameter(weight, requires_grad=False)
        around = nn.Sequential(layer)
        quantize_(around, self._how(weight.shape[1]))
        return around[0].weight.detach()

    def _how(self, columns: int) -> Any:
        if self.config.weights == "int8":
            return Int8WeightOnlyConfig(version=2)
        if self.config.weights == "float8":
            return Float8WeightOnlyConfig()
        group = self.config.group_size(columns)
        return IntxWeightOnlyConfig(
            weight_dtype=torch.int4, granularity=PerAxis(0) if group == columns else PerGroup(group)
        )

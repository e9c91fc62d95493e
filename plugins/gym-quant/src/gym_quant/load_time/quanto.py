"""Weights as quanto stores them, through the tensors of the library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from optimum.quanto import QLinear, WeightQBitsTensor, WeightQBytesTensor, qtypes
from optimum.quanto.tensor.packed import PackedTensor
from torch import Tensor, nn

from gym_quant.config.quanto import Quanto
from gym_quant.load_time.float8 import zeros_kept
from gym_torch.model.weight_codec import WeightCodec

TYPES = {"int2": "qint2", "int4": "qint4", "int8": "qint8", "float8": "qfloat8_e4m3fn"}
BITS = {"int2": 2, "int4": 4}


class QuantoCodec(WeightCodec):
    """Codes, packed at 2 and 4 bits, and scales and shifts in fp32."""

    def __init__(self, config: Quanto) -> None:
        """Keep the options."""
        self.config, self.type = config, qtypes[TYPES[config.weights]]

    def encode(self, weight: Tensor) -> dict[str, Tensor]:
        """Return codes, scales and shifts."""
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        layer.weight = nn.Parameter(weight.float(), requires_grad=False)
        made = QLinear.from_module(layer, weights=self.type)
        made.freeze()
        held: Any = made.weight.detach()
        if self.config.weights in BITS:
            held = held.weight_qbits_tensor() if type(held) is not WeightQBitsTensor else held
            return {"codes": held._data._data, "scale": held._scale, "shift": held._shift}
        codes = zeros_kept(held._data) if self.config.weights == "float8" else held._data
        return {"codes": codes, "scale": held._scale}

    def decode(self, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Return the weights, fp32."""
        codes, scale = stored["codes"], stored["scale"]
        stride = (shape[1], 1)
        if self.config.weights not in BITS:
            found = WeightQBytesTensor(self.type, 0, shape, stride, codes, scale, None)
        else:
            group = self.config.group_size(shape[1])
            size = torch.Size((shape.numel() // group, group)) if group else shape
            packed = PackedTensor(codes, BITS[self.config.weights], size, (size[1], 1))
            found = WeightQBitsTensor(self.type, 0, group, shape, stride, packed, scale, stored["shift"])
        made: Tensor = found.dequantize()
        return made

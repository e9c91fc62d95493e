"""Weights as quanto stores them, through the tensors of the library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from optimum.quanto import QLinear, WeightQBitsTensor, WeightQBytesTensor, qtypes
from torch import Tensor, nn

from gym_quant.config.quanto import Quanto
from gym_quant.load_time.fp8_zero_rows import zeros_kept
from gym_torch.quantization.weight_codec import WeightCodec

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
        if self.config.weights in BITS:
            numbers = _unpacked(codes, BITS[self.config.weights])[: len(scale)]  # the last rows may be nobody's
            return (scale * numbers - stored["shift"]).reshape(shape)
        made: Tensor = WeightQBytesTensor(self.type, 0, shape, (shape[1], 1), codes, scale, None).dequantize()
        return made


def _unpacked(codes: Tensor, bits: int) -> Tensor:
    """Return numbers that lie in bytes, the first rows in the lowest bits.

    The library's own operation compiles C++ when it is first used, which takes half a minute and a compiler, and is no faster.
    """
    return torch.cat([(codes >> shift) & (2**bits - 1) for shift in range(0, 8, bits)])

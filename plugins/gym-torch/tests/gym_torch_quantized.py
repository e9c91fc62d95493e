"""A stranger's quantizer: whole numbers with a scale for each row. It looks at nothing that ours do not see."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor

from gym_torch.kinds import LoadTimeQuantizer
from gym_torch.quantization.weight_codec import WeightCodec

ALIVE: list[Any] = []  #: what was encoded, as far as it is still in memory


class Rows(LoadTimeQuantizer):
    """8 bits a weight."""

    target: ClassVar[str] = "gym_torch_quantized:RowsCodec"

    def declared_bytes(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        return sum(prod(shape) + 4 * prod(shape[:-1]) for shape in shapes.values())


class RowsCodec(WeightCodec):
    def __init__(self, config: Rows) -> None:
        self.config = config

    def encode(self, weight: Tensor) -> dict[str, Tensor]:
        others = (other for earlier in ALIVE if (other := earlier()) is not None)
        held = weight.untyped_storage().data_ptr()  # experts of a layer are parts of one tensor
        assert all(other.untyped_storage().data_ptr() == held for other in others), "an earlier weight is in memory"
        ALIVE.append(weakref.ref(weight))
        scale = weight.float().abs().amax(1, keepdim=True).clamp_min(1e-30) / 127
        return {"codes": (weight.float() / scale).round().to(torch.int8), "scale": scale}

    def decode(self, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        return stored["codes"].float() * stored["scale"]

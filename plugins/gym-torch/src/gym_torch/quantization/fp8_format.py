"""Checkpoints in fp8: with a scale for each block, as DeepSeek and Qwen publish theirs, or one for all, as AutoFP8 writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gym_core import GymError
from gym_torch.quantization.packed_codes import blocks, spread
from gym_torch.quantization.stored_format import SCALES, StoredFormat, odd

BLOCK = (128, 128)  #: rows and columns of a block where nothing else is said


class Fp8(StoredFormat):
    """fp8 numbers `[out, in]` with one scale for each block, for each row, or for all.

    What inputs are scaled by beforehand (`activation_scheme: static`) is not used: inputs keep their precision here.
    """

    tensors = ("weight_scale_inv", "weight_scale", "weight")
    marks = ("weight_scale_inv", "weight_scale")
    unused = SCALES
    reads = "scales for blocks, rows or all of a weight"

    @classmethod
    def unknown(cls, options: Mapping[str, Any]) -> str:
        """Return a scheme of activations that nobody knows."""
        return odd(options, {"activation_scheme": ("dynamic", "static", None)})

    def shape(self, stored: Mapping[str, Tensor]) -> torch.Size:
        """Return the shape. Raises GymError where scales fit neither blocks nor rows of it."""
        shape, scale = stored["weight"].shape, _scale(stored)
        if self._block(scale, shape) is None and scale.numel() not in (1, shape[0]):
            raise GymError(
                f"there are scales {list(scale.shape)} for a weight {list(shape)}, and blocks of {self._size()}",
                key="model.path",
                fix="use a copy whose configuration says what they scale, or the model it was made of with `quantization`",
            )
        return shape

    def _size(self) -> Sequence[int]:
        return self.options.get("weight_block_size") or BLOCK

    def _block(self, scale: Tensor, shape: torch.Size) -> Sequence[int] | None:
        """Return the rows and columns of a block; None where rows are scaled, or all."""
        return self._size() if scale.dim() == 2 and scale.shape == blocks(shape, self._size()) else None

    def decode(self, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Return `number scale`, fp32."""
        scale = _scale(stored).float()
        block = self._block(scale, shape)
        return stored["weight"].float() * (scale.reshape(-1, 1) if block is None else spread(scale, block, shape))


def _scale(stored: Mapping[str, Tensor]) -> Tensor:
    return stored["weight_scale_inv"] if "weight_scale_inv" in stored else stored["weight_scale"]

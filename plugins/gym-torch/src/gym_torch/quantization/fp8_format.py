"""Checkpoints in fp8 with a scale for each block, as DeepSeek and Qwen publish theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gym_torch.quantization.stored_format import StoredFormat, odd

BLOCK = (128, 128)  #: rows and columns of a block where nothing else is said


class Fp8(StoredFormat):
    """fp8 numbers `[out, in]` with one scale for each block, or one for all."""

    tensors = ("weight_scale_inv", "weight")
    reads = "scales for blocks, and inputs that are scaled as they come"

    @classmethod
    def unknown(cls, options: Mapping[str, Any]) -> str:
        """Return the option for static scales of activations, which are not read."""
        return odd(options, {"activation_scheme": ("dynamic", None)})

    def shape(self, stored: Mapping[str, Tensor]) -> torch.Size:
        """Return the shape."""
        return stored["weight"].shape

    def decode(self, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Return `number scale`, fp32."""
        scale = stored["weight_scale_inv"].float()
        if scale.dim() == 2:
            rows, columns = self.options.get("weight_block_size") or BLOCK
            scale = scale.repeat_interleave(rows, 0)[: shape[0]].repeat_interleave(columns, 1)[:, : shape[1]]
        return stored["weight"].float() * scale

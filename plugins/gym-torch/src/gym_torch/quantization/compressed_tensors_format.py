"""Checkpoints of compressed-tensors, which `gym quantize` and llm-compressor write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gym_core import GymError
from gym_torch.quantization.packed_codes import BITS, blocks, groups, spread
from gym_torch.quantization.stored_format import SCALES, StoredFormat, odd


class CompressedTensors(StoredFormat):
    """Codes `[out, in]` without gaps, or numbers of 8 bits, with scales and zero points for rows, groups of columns or blocks.

    What inputs, outputs and caches are scaled by beforehand is not used: they keep their precision here.
    """

    tensors = ("weight_scale", "weight_packed", "weight_shape", "weight_zero_point", "weight_g_idx", "weight")
    unused = SCALES
    reads = (
        "the format pack-quantized, int-quantized, naive-quantized or float-quantized, scaled by rows, groups or blocks"
    )

    @classmethod
    def unknown(cls, options: Mapping[str, Any]) -> str:
        """Return a format or a layout of scales that is not supported, of the whole model or of some layers."""
        read = (
            "pack-quantized",
            "int-quantized",
            "naive-quantized",
            "float-quantized",
            "mixed-precision",
            "dense",
            None,
        )
        scales = ("tensor", "channel", "group", "block", None)
        found = odd(options, {"format": read})
        for group in (options.get("config_groups") or {}).values():
            weights = group.get("weights") or {}
            found = found or odd(group, {"format": read}) or odd(weights, {"strategy": scales})
            if weights.get("strategy") == "block" and _sides(weights) is None:
                found = found or f"block_structure {weights.get('block_structure')}"
        sparse = (options.get("sparsity_config") or {}).get("format", "dense")
        return found or ("" if sparse == "dense" else f"sparsity {sparse}")

    def shape(self, stored: Mapping[str, Tensor]) -> torch.Size:
        """Return the shape. Raises GymError where codes are packed in another way, or scales are for other blocks."""
        packed = stored.get("weight_packed")
        shape = stored["weight"].shape if packed is None else torch.Size(stored["weight_shape"].tolist())
        if packed is not None:
            self._bits(packed.shape[1], shape[1])
        scale = stored["weight_scale"]
        rows = scale.shape[0] if scale.dim() == 2 else scale.numel()
        if self._block(scale, shape) is None and rows not in (1, shape[0]):
            raise GymError(
                f"there are scales {list(scale.shape)} for a weight {list(shape)}, and no blocks of which there are so many",
                key="model.path",
                fix="use a copy whose configuration says what they scale, or the model it was made of with `quantization`",
            )
        return shape

    def _block(self, scale: Tensor, shape: torch.Size) -> Sequence[int] | None:
        """Return the rows and columns of a block, of those that the configuration names; None where none has as many scales."""
        schemes = ((group.get("weights") or {}) for group in (self.options.get("config_groups") or {}).values())
        named = (_sides(weights) for weights in schemes if weights.get("strategy") == "block")
        return next((sides for sides in named if sides and scale.shape == blocks(shape, sides)), None)

    def _bits(self, words: int, columns: int) -> int:
        """Return the bits of a code, of those that the configuration names, where a row takes so many integers."""
        schemes = (self.options.get("config_groups") or {}).values()
        named = sorted({bits for group in schemes if (bits := (group.get("weights") or {}).get("num_bits"))})
        found = next((bits for bits in named if -(-columns * bits // BITS) == words), None)
        if found is None:
            raise GymError(
                f"{columns} codes of {' or '.join(map(str, named))} bits are packed into {words} integers, and not without gaps",
                key="model.path",
                fix="use a copy that a later compressed-tensors wrote, or the model it was made of with `quantization`",
            )
        return found

    def decode(self, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Return `(code - zero) scale`, fp32."""
        scale, zero = stored["weight_scale"].float(), stored.get("weight_zero_point")
        if "weight_packed" in stored:
            from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

            bits = self._bits(stored["weight_packed"].shape[1], shape[1])
            codes = unpack_from_int32(stored["weight_packed"], bits, shape).float()
            zero = unpack_from_int32(zero, bits, scale.shape, 0) if zero is not None else None
        else:
            codes = stored["weight"].float()
        block = self._block(scale, shape)
        if block is not None:
            offsets = spread(zero.float().reshape(scale.shape), block, shape) if zero is not None else 0
            return (codes - offsets) * spread(scale, block, shape)
        scale = scale.reshape(-1, 1) if scale.dim() < 2 else scale
        group = stored.get("weight_g_idx")
        index = groups(scale.shape[1], shape[1], codes.device) if group is None else group.long()
        offset = zero.float().reshape(scale.shape)[:, index] if zero is not None else 0
        return (codes - offset) * scale[:, index]


def _sides(weights: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the rows and columns of a block of a scheme: `[128, 128]`, or `128x128` of earlier releases; None for neither."""
    told = weights.get("block_structure")
    parts = told.split("x") if isinstance(told, str) else told if isinstance(told, list) else []
    found = [int(part) for part in parts if str(part).strip().isdecimal() and int(part) > 0]
    return (found[0], found[1]) if len(found) == len(parts) == 2 else None

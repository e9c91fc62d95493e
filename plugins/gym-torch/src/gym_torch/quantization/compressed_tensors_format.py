"""Checkpoints of compressed-tensors, which `gym quantize` and llm-compressor write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gym_core import GymError
from gym_torch.quantization.packed_codes import BITS, groups
from gym_torch.quantization.stored_format import StoredFormat, odd


class CompressedTensors(StoredFormat):
    """Codes `[out, in]` without gaps, or numbers of 8 bits, with scales and zero points for rows or groups of columns."""

    tensors = ("weight_scale", "weight_packed", "weight_shape", "weight_zero_point", "weight_g_idx", "weight")
    reads = "the format pack-quantized, int-quantized, naive-quantized or float-quantized, scaled by rows or groups"

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
        scales = ("tensor", "channel", "group", None)
        found = odd(options, {"format": read})
        for group in (options.get("config_groups") or {}).values():
            found = found or odd(group, {"format": read}) or odd(group.get("weights") or {}, {"strategy": scales})
            if (group.get("input_activations") or {}).get("dynamic") is False:
                found = found or "scales of inputs that are found beforehand"
        sparse = (options.get("sparsity_config") or {}).get("format", "dense")
        return found or ("" if sparse == "dense" else f"sparsity {sparse}")

    def shape(self, stored: Mapping[str, Tensor]) -> torch.Size:
        """Return the shape. Raises GymError where codes are packed in another way."""
        if "weight_packed" not in stored:
            return stored["weight"].shape
        shape = torch.Size(stored["weight_shape"].tolist())
        self._bits(stored["weight_packed"].shape[1], shape[1])
        return shape

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
        scale = scale.reshape(-1, 1) if scale.dim() < 2 else scale
        group = stored.get("weight_g_idx")
        index = groups(scale.shape[1], shape[1], codes.device) if group is None else group.long()
        offset = zero.float().reshape(scale.shape)[:, index] if zero is not None else 0
        return (codes - offset) * scale[:, index]

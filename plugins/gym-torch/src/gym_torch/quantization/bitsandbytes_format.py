"""Checkpoints in 4 or 8 bits of bitsandbytes, decoded in plain torch, since its CPU kernels reorder the codes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gym_torch.quantization.stored_format import StoredFormat

STATES = ("quant_state.bitsandbytes__nf4", "quant_state.bitsandbytes__fp4")
FOUR = ("absmax", "quant_map", "nested_absmax", "nested_quant_map", *STATES)
EIGHT = ("SCB", "weight_format", "weight")


class BitsAndBytes(StoredFormat):
    """4 bits: two codes a byte, the first in the high bits, each an index into a table of 16 numbers, times the absmax of its
    block.

    With double quantization the absmax is a code of a table of 256 as well, with a scale for each of its blocks and one offset.
    8 bits: integers `[out, in]`, where 127 is the absmax of the row.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Keep the options."""
        super().__init__(options)
        four = options.get("load_in_4bit") or options.get("_load_in_4bit")
        self.tensors = (*(f"weight.{name}" for name in FOUR), "weight") if four else EIGHT  # type: ignore[misc]

    def shape(self, stored: Mapping[str, Tensor]) -> torch.Size:
        """Return the shape."""
        return stored["weight"].shape if "SCB" in stored else torch.Size(_state(stored)["shape"])

    def decode(self, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Return the weight, fp32."""
        packed = stored["weight"]
        if "SCB" in stored:
            return packed.float() * (stored["SCB"].float() / 127).reshape(-1, 1)
        state, largest = _state(stored), stored["weight_absmax"]
        if "weight_nested_absmax" in stored:
            scales = stored["weight_nested_absmax"].float().repeat_interleave(state["nested_blocksize"])
            table = stored["weight_nested_quant_map"].float()
            largest = table[largest.long()] * scales[: len(largest)] + state["nested_offset"]
        bytes_ = packed.view(torch.uint8).flatten()
        codes = torch.stack([bytes_ >> 4, bytes_ & 15], -1).flatten()[: shape.numel()].long()
        scale = largest.float().repeat_interleave(state["blocksize"])[: len(codes)]
        return (stored["weight_quant_map"].float()[codes] * scale).reshape(shape)


def _state(stored: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the quantization state of a 4-bit weight from its file: shape and block sizes."""
    (told,) = (tensor for name, tensor in stored.items() if "quant_state" in name)
    state: dict[str, Any] = json.loads(bytes(told.tolist()))
    return state

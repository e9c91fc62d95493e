"""HQQ, through the quantizer of its library: transformers does not wire it up, and its layer has one shape of weights alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from hqq.core.quantize import Quantizer
from torch import Tensor
from torch.nn import functional

from gym_quant.config.hqq import HQQ
from gym_torch.quantization.weight_codec import WeightCodec


class HqqCodec(WeightCodec):
    """Codes as the library packs them, and scale and zero point `[groups, 1]` in fp16."""

    def __init__(self, config: HQQ) -> None:
        """Keep the options."""
        self.config = config

    def encode(self, weight: Tensor) -> dict[str, Tensor]:
        """Return codes, scales and zero points."""
        config = self.config
        size = config.groups(weight.numel()) * config.group_size
        flat = functional.pad(weight.float().flatten(), (0, size - weight.numel()))
        codes, meta = Quantizer.quantize(
            flat.view(-1, config.group_size),
            nbits=config.bits,
            group_size=config.group_size,
            axis=1,
            round_zero=False,
            optimize=True,
            compute_dtype=torch.float16,
            device=str(weight.device),
        )
        return {"codes": codes, "scale": meta["scale"].half(), "zero": meta["zero"].half()}

    def decode(self, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Return `(code - zero) scale`, fp32."""
        config = self.config
        packing = Quantizer.bit_to_packing[config.bits]
        meta: dict[str, Any] = {
            "nbits": config.bits,
            "group_size": config.group_size,
            "shape": (config.groups(shape.numel()), config.group_size),
            "scale": stored["scale"].float(),
            "zero": stored["zero"].float(),
            "axis": 1,
            "packing": packing,
            "unpack_view_dtype": Quantizer.unpack_view_dtype[packing],
            "view_as_float": False,
            "compute_dtype": torch.float32,
        }
        found: Tensor = Quantizer.dequantize(stored["codes"], meta)
        return found.flatten()[: shape.numel()].view(shape)

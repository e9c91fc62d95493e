"""NF4 and FP4 as bitsandbytes stores them.

Its functions do the work. Its layers do not: on a CPU with AVX512-BF16 they store weights otherwise once they were evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import bitsandbytes.functional as bnb
import torch
from torch import Tensor

from gym_quant.config.bnb_4bit import NESTED, Bnb4bit
from gym_torch.quantization.weight_codec import WeightCodec


class Bnb4bitCodec(WeightCodec):
    """Codes `[n / 2]`, two in a byte, and scales `[blocks]`; tables of levels are those of the library and not stored."""

    def __init__(self, config: Bnb4bit) -> None:
        """Keep the options."""
        self.config = config

    def encode(self, weight: Tensor) -> dict[str, Tensor]:
        """Return codes and scales."""
        config = self.config
        codes, state = bnb.quantize_4bit(
            weight.float().contiguous(),
            blocksize=config.blocksize,
            compress_statistics=config.double_quant,
            quant_type=config.quant_type,
        )
        stored = {"codes": codes.flatten(), "absmax": state.absmax}
        if state.nested:
            stored |= {"nested_absmax": state.state2.absmax, "offset": state.offset.reshape(1)}
        return stored

    def decode(self, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Return the levels times their scales, fp32."""
        config, device = self.config, stored["codes"].device
        nested = {}
        if config.double_quant:
            scales = bnb.QuantState(
                absmax=stored["nested_absmax"], code=_nested(device), blocksize=NESTED, dtype=torch.float32
            )
            nested = {"offset": stored["offset"][0], "state2": scales}
        state = bnb.QuantState(
            absmax=stored["absmax"],
            shape=torch.Size((1, shape.numel())),  # on a CPU its rows of other lengths than whole blocks come out wrong
            code=_levels(config.quant_type, device),
            blocksize=config.blocksize,
            quant_type=config.quant_type,
            dtype=torch.float32,
            **nested,
        )
        return bnb.dequantize_4bit(stored["codes"][:, None], state).view(shape)


@cache
def _levels(kind: str, device: torch.device) -> Tensor:
    return bnb.get_4bit_type(kind, device=str(device))


@cache
def _nested(device: torch.device) -> Tensor:
    return bnb.create_dynamic_map().to(device)

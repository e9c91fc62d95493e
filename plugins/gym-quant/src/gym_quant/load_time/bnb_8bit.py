"""LLM.int8() of bitsandbytes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import bitsandbytes as bnb
import torch
from torch import Tensor

from gym_quant.config.bnb_8bit import Bnb8bit
from gym_torch.quantization.weight_codec import WeightCodec


class Bnb8bitCodec(WeightCodec):
    """Codes `[out, in]` and the largest magnitude of each row `[out]`."""

    def __init__(self, config: Bnb8bit) -> None:
        """Keep the options."""
        self.config = config

    def encode(self, weight: Tensor) -> dict[str, Tensor]:
        """Return codes and scales."""
        codes, scales, _ = bnb.functional.int8_vectorwise_quant(weight.to(torch.float16).contiguous())
        return {"codes": codes, "absmax": scales}

    def decode(self, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Return codes times scales, fp32."""
        return stored["codes"].float() * (stored["absmax"] / 127)[:, None]

    def linear(self, rows: Tensor, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Return the product of the library: integers, with outliers apart; what goes back comes through decoded weights."""
        if rows.is_meta or isinstance(rows, torch._subclasses.FakeTensor):
            return super().linear(rows, stored, shape)
        state = bnb.MatmulLtState()
        state.CB, state.SCB = stored["codes"], stored["absmax"]
        state.has_fp16_weights, state.threshold = False, self.config.threshold
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="MatMul8bitLt: inputs will be cast")
            found: Tensor = bnb.matmul(rows, stored["codes"], state=state)
        return found

"""EETQ through the kernels of its library, which run on CUDA alone."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig

from gym_core import GymError
from gym_quant.config.eetq import EETQ
from gym_torch.quantization.weight_codec import WeightCodec, decoded


class EetqCodec(WeightCodec):
    """Codes `[in, out]` as the kernels want them, and scales `[out]` in fp16."""

    def __init__(self, config: EETQ) -> None:
        """Keep the options."""
        self.config = config

    def check(self, shape: PretrainedConfig, device: torch.device) -> None:
        """Raise GymError where there is no CUDA."""
        if device.type != "cuda":
            raise GymError(
                f"the kernels of EETQ run on CUDA alone, and this run is on {device.type}",
                key="model.quantization",
                fix="use bnb_8bit, or hqq with bits: 8",
            )

    def encode(self, weight: Tensor) -> dict[str, Tensor]:
        """Return codes and scales."""
        codes, scale = _library().quant_weights(weight.T.half().contiguous().cpu(), torch.int8, False)
        return {"codes": codes.to(weight.device), "scale": scale.to(weight.device)}

    def decode(self, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Return what the kernel makes of an identity, fp16."""
        codes = stored["codes"]
        identity = torch.eye(shape[1], dtype=torch.float16, device=codes.device)
        found: Tensor = _library().w8_a16_gemm(identity, codes, stored["scale"])
        return found.T

    def linear(self, rows: Tensor, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """Return the product of the kernel, in the precision of the rows; gradients come through decoded weights."""
        if rows.device.type != "cuda" or isinstance(rows, torch._subclasses.FakeTensor):
            return super().linear(rows, stored, shape)
        found: Tensor = _Product.apply(rows, self, stored, shape)  # type: ignore[no-untyped-call]
        return found


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, codec: EetqCodec, stored: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        ctx.codec, ctx.stored, ctx.shape, ctx.dtype = codec, stored, shape, rows.dtype
        flat = rows.reshape(-1, shape[1]).half()
        found: Tensor = _library().w8_a16_gemm(flat, stored["codes"], stored["scale"])
        return found.view(*rows.shape[:-1], shape[0]).to(rows.dtype)

    @staticmethod
    def backward(ctx: Any, by_output: Tensor) -> tuple[Tensor | None, ...]:
        weight = decoded(ctx.codec, ctx.stored, ctx.shape).to(by_output.dtype)
        return (by_output @ weight).to(ctx.dtype), None, None, None


def _library() -> Any:
    return import_module("eetq")

"""NormalFloat (QLoRA, arXiv:2305.14314): weights as levels at the quantiles of a normal distribution, scaled by blocks.

Plain torch on any device, for LoftQ's alternation; what a quantized base is computed with belongs to its backend.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

OFFSET = 0.9677083  #: outermost quantile: halfway between 1 - 1/32 and 1 - 1/30


@cache
def levels(bits: int = 4) -> Tensor:
    """Return the `2 ** bits` levels in order, from -1 to 1 with 0 among them (appendix E); half of them are not below 0."""
    half = 2 ** (bits - 1)
    above = torch.special.ndtri(torch.linspace(OFFSET, 0.5, half + 1, dtype=torch.float64)[:-1])
    below = -torch.special.ndtri(torch.linspace(OFFSET, 0.5, half, dtype=torch.float64)[:-1])
    found = torch.cat([below, torch.zeros(1, dtype=torch.float64), above]).sort().values
    return (found / found.max()).float()


def encode(weight: Tensor, bits: int = 4, block: int = 64) -> tuple[Tensor, Tensor]:
    """Return the number of the nearest level of each weight, uint8 `[n]`, and the largest magnitude of each block, fp32."""
    flat = weight.float().flatten()
    blocks = torch.nn.functional.pad(flat, (0, -flat.numel() % block)).view(-1, block)
    scale = blocks.abs().amax(1)
    table = levels(bits).to(weight.device)
    bounds = (table[1:] + table[:-1]) / 2
    codes = torch.bucketize(blocks / scale.clamp_min(1e-12)[:, None], bounds)
    return codes.flatten()[: flat.numel()].to(torch.uint8), scale


def decode(codes: Tensor, scale: Tensor, shape: torch.Size, bits: int = 4, block: int = 64) -> Tensor:
    """Return the weights that `encode` stands for, fp32."""
    values = levels(bits).to(codes.device)[codes.long()]
    return (values * scale.repeat_interleave(block)[: codes.numel()]).view(shape)


def rounded(weight: Tensor, bits: int = 4, block: int = 64) -> Tensor:
    """Return the nearest weights that can be encoded, fp32."""
    return decode(*encode(weight, bits, block), weight.shape, bits, block)

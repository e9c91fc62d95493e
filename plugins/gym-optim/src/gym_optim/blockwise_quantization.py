"""8-bit codes of optimizer state (arXiv:2110.02861): dynamic tree quantization in blocks of 256, in plain torch."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

from gym_optim.base import State

BLOCK = 256  #: numbers that share a scale


def load_moment(state: State, name: str, like: Tensor, signed: bool) -> Tensor:
    """Return a moment in full precision, [..., numbers], zero where there is none yet."""
    if f"{name}_codes" not in state:
        return torch.zeros_like(like)
    values = codebook(signed, like.device, like.dtype)[state[f"{name}_codes"].int()]
    scales = state[f"{name}_scales"].repeat_interleave(BLOCK, dim=-1)[..., : values.shape[-1]]
    return values.mul_(scales)


def quantize_moment(name: str, value: Tensor, signed: bool) -> dict[str, Tensor]:
    """Return a moment [..., numbers] as codes, and the largest magnitude of each block, [..., blocks]."""
    numbers = value.shape[-1]
    blocks = pad(value, (0, -numbers % BLOCK)).unflatten(-1, (-1, BLOCK))
    scales = blocks.abs().amax(-1, keepdim=True)
    points = codebook(signed, value.device, value.dtype)
    codes = torch.bucketize(blocks / scales.clamp(min=torch.finfo(value.dtype).tiny), (points[1:] + points[:-1]) / 2)
    codes = codes.to(torch.uint8).flatten(-2)[..., :numbers].clone()
    return {f"{name}_codes": codes, f"{name}_scales": scales.squeeze(-1).clone()}


@cache
def codebook(signed: bool, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the 256 numbers in [-1, 1] or (0, 1] that codes stand for, ascending.

    Dynamic tree quantization: the leading zeros of a code say the power of ten, the bits that are left divide the decade
    evenly. Without sign there is no zero: a second moment that became nothing would make the next step huge.
    """
    bits = 6 if signed else 7  # for exponent and fraction
    found = [0.0, 1.0] if signed else [1.0]
    for exponent in range(bits + 1):
        count = 2 ** (bits - exponent)
        edges = [0.1 + 0.9 * number / count for number in range(count + 1)]
        middles = [(low + high) / 2 * 10.0**-exponent for low, high in pairwise(edges)]
        found += middles + ([-middle for middle in middles] if signed else [])
    return torch.tensor(sorted(found), dtype=dtype, device=device)

"""Random numbers that belong to a place: the same whatever the chunks are, and in whatever order inputs come."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor


def uniform(seed: int, name: str, begin: int, end: int) -> Tensor:
    """Return the numbers in [0, 1) of the coordinates `begin` to `end` of an input, fp64.

    Philox counts: each of its steps gives four numbers, so that any place can be begun at.
    """
    key = int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:16], "little")
    bits = np.random.Philox(key=key)
    bits.advance(begin // 4)
    skipped = begin % 4
    return torch.from_numpy(np.random.Generator(bits).random(skipped + end - begin)[skipped:])


def uniforms(seed: int, names: tuple[str, ...], begin: int, end: int) -> Tensor:
    """Return those of several inputs: `[inputs, end - begin]`."""
    return torch.stack([uniform(seed, name, begin, end) for name in names])

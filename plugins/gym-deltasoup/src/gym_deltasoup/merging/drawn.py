"""Random numbers that belong to a place: the same whatever the chunks are, and in whatever order inputs come.

And changes of which they drop some.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

from gym_deltasoup.merging.updates import Chunk


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


def thinned(chunk: Chunk, names: tuple[str, ...], rates: Tensor, seed: int, rescale: bool) -> Tensor:
    """Drop each number of a chunk with its rate `[inputs, n]` or `[inputs, 1]`; with `rescale` the others are enlarged by it."""
    draws = uniforms(seed, names, chunk.begin, chunk.begin + chunk.values.shape[1])
    kept = chunk.values / (1 - rates) if rescale else chunk.values
    return torch.where(draws >= rates, kept, 0.0).to(chunk.values.dtype)

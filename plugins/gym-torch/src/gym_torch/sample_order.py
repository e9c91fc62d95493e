"""In which order an epoch goes through its samples."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gym_torch.packing import Ints


@lru_cache(maxsize=4)
def order(seed: int, epoch: int, samples: int) -> Ints:
    """Return the order of an epoch: samples sorted by a hash of (seed, epoch, index), the same everywhere."""
    key = np.zeros(1, dtype=np.uint64)
    for word in (seed, epoch):
        key = _mix(key ^ np.uint64(word % 2**64))
    return np.argsort(_mix(_mix(np.arange(samples, dtype=np.uint64)) ^ key), kind="stable")


@lru_cache(maxsize=1)
def in_turn(samples: int) -> Ints:
    """Return the order in which the samples are there."""
    return np.arange(samples, dtype=np.int64)


def _mix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Scramble 64-bit words, one to one: the output function of SplitMix64 (doi:10.1145/2714064.2660195)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = words ^ (words >> np.uint64(31))
    return mixed

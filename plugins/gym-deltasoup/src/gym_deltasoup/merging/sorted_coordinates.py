"""Sorting each coordinate over the inputs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

SMALL = 2**18  #: numbers that are sorted in one thread


def sorted_columns(values: Tensor) -> Tensor:
    """Return each column of `[inputs, n]` sorted, in one piece each. numpy sorts with vector instructions, in several threads."""
    array = values.numpy()
    parts = torch.get_num_threads() if array.size > SMALL else 1
    found = np.empty(array.shape[::-1], array.dtype)
    edges = [array.shape[1] * part // parts for part in range(parts + 1)]

    def fill(begin: int, end: int) -> None:
        found[begin:end] = array[:, begin:end].T
        found[begin:end].sort(axis=1)

    if parts == 1:
        fill(0, array.shape[1])
    else:
        with ThreadPoolExecutor(parts) as pool:
            list(pool.map(fill, edges[:-1], edges[1:]))
    return torch.from_numpy(found).T


def middle_of(ordered: Tensor) -> Tensor:
    """Return the median of each sorted column; the mean of the middle two where their number is even."""
    count = len(ordered)
    low, high = ordered[(count - 1) // 2], ordered[count // 2]
    return low + (high - low) / 2


def trimmed(ordered: Tensor, cut: int) -> Tensor:
    """Return the mean of each sorted column without the `cut` first and last numbers."""
    kept = ordered[cut : len(ordered) - cut]
    if len(kept) <= 128:
        mean = kept.T.mean(1, dtype=torch.float64).to(kept.dtype)
    else:
        mean = torch.full((len(kept),), 1 / len(kept), dtype=kept.dtype) @ kept
    return mean.clamp(kept[0], kept[-1])  # a mean may be rounded beyond what it is the mean of

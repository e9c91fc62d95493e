"""Normal noise that nobody can draw again."""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor

PARTS = 4  #: normal numbers of which each is made


def normal(count: int, sigma: float) -> Tensor:
    """Return so many normal numbers of mean 0 and standard deviation `sigma`: fp64.

    Bits are those of the operating system, which no seed repeats. Each number is the sum of four: which of the numbers near to it
    cannot come up then says nothing of what it was added to (Holohan and Braghin 2021, section 4).
    """
    found = np.zeros(count)
    for _ in range(PARTS // 2):
        bits = np.frombuffer(os.urandom(16 * count), dtype=np.uint64).reshape(2, count)
        radius, turn = ((bits >> np.uint64(11)) + 0.5) * 2.0**-53
        length = np.sqrt(-2 * np.log(radius))
        found += length * (np.cos(2 * np.pi * turn) + np.sin(2 * np.pi * turn))
    return torch.from_numpy(found * (sigma / PARTS**0.5))

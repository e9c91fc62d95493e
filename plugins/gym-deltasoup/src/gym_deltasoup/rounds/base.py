"""The model that everybody trains from: what its weights are called, and of what shapes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import torch

from gym_data.location import lasting, locate
from gym_deltasoup.sources.tensor_slices import Stored, tensors_of
from gym_torch.checkpoints.base_fingerprint import base_fingerprint

PIECE = 1 << 22  #: numbers that are read at a time


class Base:
    """A model on this machine."""

    def __init__(self, name: str) -> None:
        """Find it. Raises GymError where it is not there."""
        self.name = lasting(name)
        self.path: Path = locate(name, key="base_model")
        self.fingerprint = base_fingerprint(self.path)

    @cached_property
    def tensors(self) -> Mapping[str, Stored]:
        """All weights, by name."""
        return tensors_of(self.path)

    @cached_property
    def norm(self) -> float:
        """Norm of all weights together."""
        return sum(squared(each) for each in self.tensors.values()) ** 0.5


def squared(stored: Stored, less: Stored | None = None) -> float:
    """Return the sum of the squares of numbers in a file, or of what they differ by from others: NaN where one is none."""
    total = 0.0
    for begin in range(0, stored.numbers, PIECE):
        end = min(begin + PIECE, stored.numbers)
        values = stored.read(begin, end).double()
        if less is not None:
            values = values - less.read(begin, end).double()
        total += float(torch.dot(values, values))
    return total

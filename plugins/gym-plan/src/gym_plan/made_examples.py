"""The batch that a plan is made for: samples of given lengths, laid out by the objective as those of the data will be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gym_torch.batch import Batch
from gym_torch.objective import Objective


@dataclass(frozen=True)
class Blank:
    """A sample that has a length and nothing to say. Every token is trained, which is the most a batch can need."""

    id: str
    length: int

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """Return token ids `[length]`, all 0."""
        return np.zeros(self.length, dtype=np.int32)

    @property
    def trained(self) -> npt.NDArray[np.bool_]:
        """Return `[length]`, all true."""
        return np.ones(self.length, dtype=np.bool_)


@dataclass(frozen=True)
class Blanks:
    """A data set of such samples, all of one length."""

    length: int
    count: int

    @property
    def lengths(self) -> npt.NDArray[np.integer]:
        """Tokens of each sample."""
        return np.full(self.count, self.length)

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.count

    def __getitem__(self, index: int, /) -> Blank:
        """Return one sample."""
        return Blank(f"planned/{index}", self.length)


def planned(objective: Objective[Any], lengths: Sequence[int]) -> Batch:
    """Return a batch of samples of these lengths."""
    return objective.collate([Blank(f"planned/{number}", length) for number, length in enumerate(lengths)])


def lengths_of(tokens: int, longest: int) -> list[int]:
    """Return the lengths of samples that make up a batch of so many tokens, none longer than `longest`.

    One sample of the full length stays when not even that fits, as in a batch of the data.
    """
    return [longest] * (tokens // longest) or [longest]

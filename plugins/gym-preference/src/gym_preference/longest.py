"""Steps for a plan: over the examples of the data, or over the longest that there may be."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gym_core import Train
from gym_torch.batch import Example
from gym_torch.packing import Layout
from gym_torch.source import Dataset, Examples


def planned(
    examples: Examples,
    train: Train,
    layout: Layout,
    kind: type[Example],
    longest: Callable[[Example], Example],
    sides: int = 1,
) -> Dataset:
    """Return the steps over `examples`; where they are none of `kind`, but samples of a plan, over what `longest` makes of each.

    That has `sides` times the tokens of the sample.
    """
    plain = len(examples) and not isinstance(examples[0], kind)
    return Dataset(_Longest(examples, longest, sides) if plain else examples, train, layout=layout)


class _Longest:
    def __init__(self, examples: Examples, longest: Callable[[Example], Example], sides: int) -> None:
        self.examples, self.longest, self.sides = examples, longest, sides

    @property
    def lengths(self) -> npt.NDArray[np.integer]:
        """Tokens of each."""
        return self.sides * np.asarray(self.examples.lengths)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.examples)

    def __getitem__(self, index: int, /) -> Example:
        """Return one."""
        return self.longest(self.examples[index])

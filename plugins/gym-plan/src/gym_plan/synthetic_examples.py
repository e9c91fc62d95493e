"""Examples of given lengths without contents, for plans: as long as those of the data, and collated by the objective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gym_data.examples import Example
from gym_data.shapes import example_of
from gym_torch.batch import Batch
from gym_torch.objective import Objective


@dataclass(frozen=True)
class SyntheticExamples:
    """A data set of examples of one shape (`Algorithm.rows`), all with the most to learn in sequences of one length."""

    shape: str
    length: int
    count: int

    @property
    def lengths(self) -> npt.NDArray[np.integer]:
        """Tokens of each example."""
        return np.full(self.count, len(self[0].tokens))

    def __len__(self) -> int:
        """Return the number of examples."""
        return self.count

    def __getitem__(self, index: int, /) -> Example:
        """Return one example."""
        return _unlike(example_of(self.shape).longest(f"planned/{index}", self.length), index)


def planned(objective: Objective[Any, Any], lengths: Sequence[int], shape: str = "conversation") -> Batch:
    """Return a batch of examples of one shape, whose sequences have these lengths."""
    kind = example_of(shape)
    examples = [kind.longest(f"planned/{number}", length) for number, length in enumerate(lengths)]
    return objective.collate([_unlike(example, number) for number, example in enumerate(examples)])


def _unlike(example: Example, number: int) -> Example:
    """Return an example with tokens that no other begins with, so that nothing of a batch is left out as said before."""
    return replace(example, tokens=np.arange(number, number + len(example.tokens), dtype=np.int32))


def lengths_of(tokens: int, longest: int) -> list[int]:
    """Return the lengths of samples that make up a batch of so many tokens, none longer than `longest`.

    One sample of the full length stays when not even that fits, as in a batch of the data.
    """
    return [longest] * (tokens // longest) or [longest]

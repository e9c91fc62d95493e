"""Pairs as answers over what both sides begin with."""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt

from gym_core import Train
from gym_data.cache import Pair
from gym_preference.answers import Answered
from gym_preference.config import Pairwise
from gym_torch.batch import Example, Piece
from gym_torch.layout import Layout
from gym_torch.source import Dataset, Examples


def answered(pair: Example) -> Answered:
    """Return the tokens that both sides begin with, then the chosen and the rejected answer."""
    pair = cast(Pair, pair)
    middle = pair.shared + pair.chosen
    sides = slice(pair.shared, middle), slice(middle, None)
    return Answered(
        pair.tokens[: pair.shared], tuple(Piece(pair.id, pair.tokens[side], pair.trained[side]) for side in sides)
    )


def recorded(config: Pairwise, examples: Examples, train: Train, layout: Layout) -> Dataset:
    """Return the steps over pairs, for a plan: over those of the data, or over the longest that there may be."""
    planned = len(examples) and not isinstance(examples[0], Pair)
    return Dataset(_Longest(examples) if planned else examples, train, layout=layout)


class _Longest:
    """Pairs of which both sides are as long as the samples of a plan, and share nothing."""

    def __init__(self, examples: Examples) -> None:
        self.examples = examples

    @property
    def lengths(self) -> npt.NDArray[np.integer]:
        """Tokens of each."""
        return 2 * np.asarray(self.examples.lengths)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.examples)

    def __getitem__(self, index: int, /) -> Pair:
        """Return one."""
        side = self.examples[index]
        tokens, trained = np.tile(side.tokens, 2), np.tile(side.trained, 2)
        return Pair(side.id, tokens, trained, 0, len(side.tokens))

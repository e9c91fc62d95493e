"""Pairs as answers over what both sides begin with."""

from __future__ import annotations

from typing import cast

import numpy as np

from gym_core import Train
from gym_data.cache import Pair
from gym_preference.config import Pairwise
from gym_preference.longest import planned
from gym_torch.batch import Example, Piece
from gym_torch.packing import Layout
from gym_torch.prompt_responses import PromptResponses
from gym_torch.source import Dataset, Examples


def prompt_responses(pair: Example) -> PromptResponses:
    """Return the tokens that both sides begin with, then the chosen and the rejected answer."""
    pair = cast(Pair, pair)
    middle = pair.shared + pair.chosen
    sides = slice(pair.shared, middle), slice(middle, None)
    responses = tuple(Piece(pair.id, pair.tokens[side], pair.trained[side]) for side in sides)
    return PromptResponses(pair.tokens[: pair.shared], responses, pair.id)


def recorded(config: Pairwise, examples: Examples, train: Train, layout: Layout) -> Dataset:
    """Return the steps over pairs, for a plan; the longest have two such sides and share nothing."""
    return planned(examples, train, layout, Pair, _longest, sides=2)


def _longest(side: Example) -> Pair:
    return Pair(side.id, np.tile(side.tokens, 2), np.tile(side.trained, 2), 0, len(side.tokens))

"""Pairs as responses over what both sides begin with."""

from __future__ import annotations

from gym_data.examples import Pair
from gym_torch.batch import Piece
from gym_torch.inputs_beside import inputs_of
from gym_torch.prompt_responses import PromptResponses


def prompt_responses(pair: Pair) -> PromptResponses:
    """Return the tokens that both sides begin with, then the chosen and the rejected response."""
    middle = pair.shared + pair.chosen
    sides = slice(pair.shared, middle), slice(middle, None)
    responses = tuple(Piece(pair.id, pair.tokens[side], pair.trained[side], *inputs_of(pair)) for side in sides)
    return PromptResponses(pair.tokens[: pair.shared], responses, pair.id)

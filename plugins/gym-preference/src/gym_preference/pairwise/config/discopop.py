"""Options of DiscoPOP. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gym_preference.config import PairwisePreference, WithReference


class DiscoPOP(WithReference, PairwisePreference):
    """A loss that was found by a language model: DPO's for pairs that are wrong, an exponential one for those that are right.

        loss = (1 - g) f(m) + g exp(-m),  m = beta (w - l),  f(m) = -log sigmoid(m),  g = sigmoid(m / discopop_tau)

    w, l: log-ratios to the reference of the chosen and the rejected response, summed over their tokens.

    Use it for: what `dpo` is for, to be tried beside it.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:discopop"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:discopop"

    discopop_tau: Annotated[float, Field(gt=0)] = 0.05
    """DiscoPOP temperature (tau): how sharply the loss changes from one form to the other at a margin of 0."""

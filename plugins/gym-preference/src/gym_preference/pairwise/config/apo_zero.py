"""Options of APO-zero. Imports nothing heavy."""

from __future__ import annotations

from typing import ClassVar

from gym_preference.config import PairwisePreference, WithReference


class APOZero(WithReference, PairwisePreference):
    """Anchored preference optimization for chosen responses that are better than the model's: up, and the rejected ones down.

        loss = 1 - sigmoid(beta w) + sigmoid(beta l)

    w, l: log-ratios to the reference of the chosen and the rejected response, summed over their tokens.

    Use it for: chosen responses that are better than what the model says now: they rise and the rejected ones fall.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:apo_zero"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:apo_zero"

"""Options of APO-down. Imports nothing heavy."""

from __future__ import annotations

from typing import ClassVar

from gym_preference.config import PairwisePreference, WithReference


class APODown(WithReference, PairwisePreference):
    """Anchored preference optimization for chosen responses that are worse than the model's: down, the rejected ones further.

        loss = sigmoid(beta w) + 1 - sigmoid(beta (w - l))

    w, l: log-ratios to the reference of the chosen and the rejected response, summed over their tokens.

    Use it for: chosen responses that are worse than what the model says now: both fall, the rejected ones further.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:apo_down"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:apo_down"

"""Options of DPO. Imports nothing heavy."""

from __future__ import annotations

from typing import ClassVar

from gym_preference.config import PairwisePreference, WithReference


class DPO(WithReference, PairwisePreference):
    """Direct preference optimization: the chosen response gains on the rejected one, measured against a reference.

        loss = -log sigmoid(beta (w - l))

    w, l: log-ratios to the reference of the chosen and the rejected response, summed over their tokens.

    Use it for: the first choice for pairs. A longer response has more tokens to gain with, so responses may grow: `length_bias`
    in the log tells.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:dpo"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:dpo"

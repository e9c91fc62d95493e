"""Options of SPPO. Imports nothing heavy."""

from __future__ import annotations

from typing import ClassVar

from gym_preference.config import PairwisePreference, WithReference


class SPPO(WithReference, PairwisePreference):
    """Self-play preference optimization with sure labels: each response has an aim of its own.

        loss = (w - 1 / (2 beta))^2 + (l + 1 / (2 beta))^2

    w, l: log-ratios to the reference of the chosen and the rejected response, summed over their tokens.

    Use it for: pairs of the policy's own responses, round after round: both sides have an aim.

    Differs: the labels are sure (the paper has win rates of a preference model), and a run is one round.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:sppo"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:sppo"

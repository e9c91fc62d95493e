"""Options of BCO of pairs. Imports nothing heavy."""

from __future__ import annotations

from typing import ClassVar

from gym_preference.config import PairwisePreference, WithReference


class BCOPair(WithReference, PairwisePreference):
    """Binary classifier optimization of pairs: the chosen response is good and the rejected one bad, each by itself.

        loss = -log sigmoid(beta w) - log sigmoid(-beta l)

    w, l: log-ratios to the reference of the chosen and the rejected response, summed over their tokens.

    Use it for: pairs of which the chosen response is good in itself and the rejected one bad, and not only better and worse.

    Differs: the paper measures rewards from their running mean; pairs have none here. Single labels have it: `bco`.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:bco_pair"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:bco_pair"

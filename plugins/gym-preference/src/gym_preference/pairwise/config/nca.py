"""Options of NCA. Imports nothing heavy."""

from __future__ import annotations

from typing import ClassVar

from gym_preference.config import PairwisePreference, WithReference


class NCA(WithReference, PairwisePreference):
    """Noise contrastive alignment: the chosen response becomes likelier by itself, not only beside the rejected one.

        loss = -log sigmoid(beta w) - [log sigmoid(-beta w) + log sigmoid(-beta l)] / 2

    w, l: log-ratios to the reference of the chosen and the rejected response, summed over their tokens.

    Use it for: chosen responses that become unlikely under `dpo`: here each has an aim of its own, and the chosen one rises.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:nca_pair"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:nca_pair"

"""Options of IPO. Imports nothing heavy."""

from __future__ import annotations

from typing import ClassVar

from gym_preference.config import PairwisePreference, WithReference


class IPO(WithReference, PairwisePreference):
    """Identity preference optimization: the margin has an aim, 1 / (2 beta) nats for each token, and does not grow past it.

        loss = (w - l - 1 / (2 beta))^2

    w, l: mean log-ratios to the reference of a token of the chosen and of the rejected response.

    Use it for: few or one-sided pairs, on which `dpo` goes on to widen margins that are right already: here each has an aim.

    Differs: the paper's sums over tokens are means, as in TRL, so that the aim does not depend on the length; `beta` is its
    tau.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:ipo"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:ipo"
    per_token: ClassVar[bool] = True

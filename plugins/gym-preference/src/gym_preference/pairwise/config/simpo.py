"""Options of SimPO. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gym_preference.config import PairwisePreference


class SimPO(PairwisePreference):
    """Simple preference optimization: mean log-probabilities of the responses themselves, apart by a margin; no reference.

        loss = -log sigmoid(beta (w - l) - simpo_gamma)

    w, l: mean log-probabilities of a token of the chosen and of the rejected response.

    Use it for: no memory or time for a reference. Nothing holds the policy, so the learning rate must be low and `simpo_gamma`
    tuned.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:simpo"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:simpo"
    per_token: ClassVar[bool] = True

    beta: Annotated[float, Field(gt=0)] = 2.0
    """SimPO beta: scales the difference of the mean log-probabilities."""
    simpo_gamma: Annotated[float, Field(ge=0)] = 1.0
    """SimPO target reward margin (gamma) between the two responses."""

"""Options of Length-normalised DPO. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gym_preference.config import PairwisePreference, WithReference


class DPONorm(WithReference, PairwisePreference):
    """Length-normalised DPO: responses are compared token for token, so that a long one is not moved further.

        loss = -log sigmoid(beta (w - l))

    w, l: mean log-ratios to the reference of a token of the chosen and of the rejected response.

    Use it for: pairs whose responses differ much in length, or where `dpo` makes responses longer and longer.

    Differs: `beta` is larger than DPO's, for a mean over tokens is smaller than their sum.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:dpo"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:dpo_norm"
    per_token: ClassVar[bool] = True

    beta: Annotated[float, Field(gt=0)] = 5.0
    """KL coefficient (beta). A log-ratio is a mean over tokens here, so it is larger than DPO's."""

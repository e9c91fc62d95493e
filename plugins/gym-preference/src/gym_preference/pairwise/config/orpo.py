"""Options of ORPO. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gym_preference.config import PairwisePreference


class ORPO(PairwisePreference):
    """Odds ratio preference optimization: fine-tuning on the chosen response and a term that keeps the rejected one down.

        loss = -w - beta log sigmoid(log odds(w) - log odds(l)),  log odds(x) = x - log(1 - exp(x))

    w, l: mean log-probabilities of a token of the chosen and of the rejected response.

    Use it for: a base model and pairs, in one run: it fine-tunes on the chosen responses as it goes, and needs no reference.

    Differs: `beta` is the paper's lambda.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:orpo"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:orpo"
    per_token: ClassVar[bool] = True

    beta: Annotated[float, Field(gt=0)] = 0.1
    """ORPO lambda: weight of the odds ratio term beside the negative log-likelihood of the chosen response."""

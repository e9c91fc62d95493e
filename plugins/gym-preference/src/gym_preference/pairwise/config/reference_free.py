"""Losses of pairs without a reference, as a recipe names them. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gym_preference.config import PairwisePreference


class SimPO(PairwisePreference):
    """Simple preference optimization: mean log-probabilities of the answers themselves, apart by a margin; no reference.

        loss = -log sigmoid(beta (w - l) - simpo_gamma)

    w, l: mean log-probabilities of a token of the chosen and of the rejected answer.

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


class ORPO(PairwisePreference):
    """Odds ratio preference optimization: fine-tuning on the chosen answer and a term that keeps the rejected one down.

        loss = -w - beta log sigmoid(log odds(w) - log odds(l)),  log odds(x) = x - log(1 - exp(x))

    w, l: mean log-probabilities of a token of the chosen and of the rejected answer.

    Use it for: a base model and pairs, in one run: it fine-tunes on the chosen answers as it goes, and needs no reference.

    Differs: `beta` is the paper's lambda.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:orpo"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:orpo"
    per_token: ClassVar[bool] = True

    beta: Annotated[float, Field(gt=0)] = 0.1
    """ORPO lambda: weight of the odds ratio term beside the negative log-likelihood of the chosen response."""


class CPO(PairwisePreference):
    """Contrastive preference optimization: DPO with no reference, held in place by learning the chosen answer.

        loss = -log sigmoid(beta (w - l)) + ftx nll

    w, l: log-probabilities of the chosen and the rejected answer, summed over their tokens; nll: the mean of -log p over the
    tokens of the chosen one.

    Use it for: no memory for a reference, and chosen answers that are good enough to be learnt by themselves.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:dpo"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:cpo"

    ftx: Annotated[float, Field(ge=0)] = 1.0
    """SFT loss coefficient: weight of the mean negative log-likelihood per token of the chosen response."""

"""Options of CPO. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gym_preference.config import PairwisePreference


class CPO(PairwisePreference):
    """Contrastive preference optimization: DPO with no reference, held in place by training on the chosen response.

        loss = -log sigmoid(beta (w - l)) + ftx nll

    w, l: log-probabilities of the chosen and the rejected response, summed over their tokens; nll: the mean of -log p over the
    tokens of the chosen one.

    Use it for: no memory for a reference, and chosen responses that are good enough to be trained on by themselves.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:dpo"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:cpo"

    ftx: Annotated[float, Field(ge=0)] = 1.0
    """SFT loss coefficient: weight of the mean negative log-likelihood per token of the chosen response."""

"""Options of MPO. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gym_preference.config import PairwisePreference, WithReference

Summed = Literal["apo_down", "apo_zero", "bco_pair", "dpo", "hinge", "nca", "sppo"]


class MPO(WithReference, PairwisePreference):
    """Mixed preference optimization: which response is better, whether each is good by itself, and how to give the good one.

        loss = sum of v_a loss_a over algorithms a + ftx nll

    v: `loss_weights`; loss_a: what the algorithm of that name takes for its loss, with the one `beta` of this; nll: the mean of
    -log p over the tokens of the chosen response.

    Use it for: answers that reason before they conclude, which `dpo` alone may leave repeating themselves or cut short; or for a
    weighted sum of losses of your own choice.

    Differs: the paper's loss of each response measures rewards from their running mean; `bco_pair` measures from 0, as TRL does.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:mpo"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:mpo"

    loss_weights: Annotated[dict[Summed, Annotated[float, Field(gt=0)]], Field(min_length=1)] = {
        "dpo": 0.8,
        "bco_pair": 0.2,
    }
    """Loss weights: what the loss of each algorithm counts (`loss_type` and `loss_weights` in TRL, where the weight of `sft` is
    `ftx` here)."""
    ftx: Annotated[float, Field(ge=0)] = 1.0
    """SFT loss coefficient: weight of the mean negative log-likelihood per token of the chosen response."""

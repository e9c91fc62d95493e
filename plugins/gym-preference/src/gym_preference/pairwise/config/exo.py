"""Options of EXO. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gym_preference.config import PairwisePreference, WithReference


class EXO(WithReference, PairwisePreference):
    """Efficient exact optimization: the reverse KL divergence between what the policy and what the labels prefer.

        loss = p log(p / (1 - e)) + (1 - p) log((1 - p) / e),  p = sigmoid(beta (w - l))

    w, l: log-ratios to the reference of the chosen and the rejected response, summed over their tokens; e: `label_smoothing`.

    Use it for: a policy that should settle on the better responses (reverse KL) rather than cover all that the labels allow, as
    DPO's does.

    Differs: the labels are a pair's, and no reward model's.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:exo_pair"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:exo_pair"

    label_smoothing: Annotated[float, Field(gt=0, lt=0.5)] = 1e-3
    """Label smoothing: the share of labels that are wrong. Not 0, where the loss is finite for a deterministic policy alone."""

"""Options of Robust DPO. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gym_preference.config import PairwisePreference, WithReference


class RobustDPO(WithReference, PairwisePreference):
    """DPO whose loss is, in the mean over wrong labels, what it would be with right ones.

        loss = [-(1 - e) log sigmoid(beta (w - l)) + e log sigmoid(beta (l - w))] / (1 - 2 e)

    w, l: log-ratios to the reference of the chosen and the rejected response, summed over their tokens; e: `label_smoothing`.

    Use it for: labels that were flipped at random, at a rate that is known: in the mean over flips it is DPO's loss on right
    labels. Where the rate is a guess, `cdpo` is safer.

    Differs: the loss of a single pair may be negative, and its margin has no aim.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:robust_dpo"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:robust_dpo"

    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.1
    """Label smoothing: the share of labels that are wrong."""

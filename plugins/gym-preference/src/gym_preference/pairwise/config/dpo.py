"""DPO, and DPO with other lengths or labels, as a recipe names them. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gym_preference.config import PairwisePreference, WithReference


class DPO(WithReference, PairwisePreference):
    """Direct preference optimization: the chosen answer gains on the rejected one, measured against a reference.

        loss = -log sigmoid(beta (w - l))

    w, l: log-ratios to the reference of the chosen and the rejected answer, summed over their tokens.

    Use it for: the first choice for pairs. A longer answer has more tokens to gain with, so answers may grow: `length_bias`
    in the log tells.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:dpo"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:dpo"


class DPONorm(WithReference, PairwisePreference):
    """Length-normalised DPO: answers are compared token for token, so that a long one is not moved further.

        loss = -log sigmoid(beta (w - l))

    w, l: mean log-ratios to the reference of a token of the chosen and of the rejected answer.

    Use it for: pairs whose answers differ much in length, or where `dpo` makes answers longer and longer.

    Differs: `beta` is larger than DPO's, for a mean over tokens is smaller than their sum.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:dpo"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:dpo_norm"
    per_token: ClassVar[bool] = True

    beta: Annotated[float, Field(gt=0)] = 5.0
    """KL coefficient (beta). A log-ratio is a mean over tokens here, so it is larger than DPO's."""


class LDDPO(WithReference, PairwisePreference):
    """Length-desensitised DPO: tokens of the longer answer that the shorter one has no match for count less.

        loss = -log sigmoid(beta (w - l))

    w, l: as DPO's, but tokens beyond the length of the shorter answer count `ld_alpha` times.

    Use it for: answers that become longer under `dpo` while `dpo_norm` learns too little: `ld_alpha` lies between the two.
    """

    objective: ClassVar[str] = "gym_preference.pairwise.objective:LengthDesensitized"
    loss: ClassVar[str] = "gym_preference.pairwise.losses:dpo"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:ld_dpo"

    ld_alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    """LD-DPO alpha: weight of the log-ratios of tokens beyond the length of the shorter response; 1 makes it DPO."""


class CDPO(WithReference, PairwisePreference):
    """Conservative DPO: some labels are wrong, so no answer is ever surely the better one.

        loss = -(1 - e) log sigmoid(beta (w - l)) - e log sigmoid(beta (l - w))

    w, l: log-ratios to the reference of the chosen and the rejected answer, summed over their tokens; e: `label_smoothing`.

    Use it for: labels of which a known share is wrong. The margin has an aim, log((1 - e) / e) / beta, and does not grow past
    it.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:cdpo"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:cdpo"

    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.1
    """Label smoothing: the share of labels that are wrong."""


class RobustDPO(WithReference, PairwisePreference):
    """DPO whose loss is, in the mean over wrong labels, what it would be with right ones.

        loss = [-(1 - e) log sigmoid(beta (w - l)) + e log sigmoid(beta (l - w))] / (1 - 2 e)

    w, l: log-ratios to the reference of the chosen and the rejected answer, summed over their tokens; e: `label_smoothing`.

    Use it for: labels that were flipped at random, at a rate that is known: in the mean over flips it is DPO's loss on right
    labels. Where the rate is a guess, `cdpo` is safer.

    Differs: the loss of a single pair may be negative, and its margin has no aim.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:robust_dpo"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:robust_dpo"

    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.1
    """Label smoothing: the share of labels that are wrong."""

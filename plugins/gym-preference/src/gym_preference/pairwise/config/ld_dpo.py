"""Options of Length-desensitised DPO. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gym_preference.config import PairwisePreference, WithReference


class LDDPO(WithReference, PairwisePreference):
    """Length-desensitised DPO: tokens of the longer response that the shorter one has no match for count less.

        loss = -log sigmoid(beta (w - l))

    w, l: as DPO's, but tokens beyond the length of the shorter response count `ld_alpha` times.

    Use it for: responses that become longer under `dpo` while `dpo_norm` learns too little: `ld_alpha` lies between the two.
    """

    objective: ClassVar[str] = "gym_preference.pairwise.objective:LengthDesensitized"
    loss: ClassVar[str] = "gym_preference.pairwise.losses:dpo"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:ld_dpo"

    ld_alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    """LD-DPO alpha: weight of the log-ratios of tokens beyond the length of the shorter response; 1 makes it DPO."""

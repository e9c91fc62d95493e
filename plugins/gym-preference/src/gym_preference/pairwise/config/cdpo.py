"""Options of Conservative DPO. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gym_preference.config import PairwisePreference, WithReference


class CDPO(WithReference, PairwisePreference):
    """Conservative DPO: some labels are wrong, so no response is ever surely the better one.

        loss = -(1 - e) log sigmoid(beta (w - l)) - e log sigmoid(beta (l - w))

    w, l: log-ratios to the reference of the chosen and the rejected response, summed over their tokens; e: `label_smoothing`.

    Use it for: labels of which a known share is wrong. The margin has an aim, log((1 - e) / e) / beta, and does not grow past
    it.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:cdpo"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:cdpo"

    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.1
    """Label smoothing: the share of labels that are wrong."""

"""Options of SLiC's hinge loss. Imports nothing heavy."""

from __future__ import annotations

from typing import ClassVar

from gym_preference.config import PairwisePreference, WithReference


class Hinge(WithReference, PairwisePreference):
    """SLiC: pairs whose margin is large enough no longer train.

        loss = max(0, 1 - beta (w - l))

    w, l: log-ratios to the reference of the chosen and the rejected response, summed over their tokens.

    Use it for: pairs that are easy to tell apart: those past a margin of 1 / beta no longer pull.

    Differs: SLiC's own loss has no reference and adds fine-tuning; this is the form that RSO gave it. `ftx` adds the
    fine-tuning.
    """

    loss: ClassVar[str] = "gym_preference.pairwise.losses:hinge"
    oracle: ClassVar[str] = "gym_preference.pairwise.naive_losses:hinge"

"""Options that the algorithms over unpaired responses share. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gym_preference.config import WithReference


class UnpairedPreference(WithReference):
    """Base of the algorithms that learn from single responses and whether each is desirable.

    A loss is a function of one number for each response, its log-probability less that under the reference, `[responses]`; of
    whether each is desirable; and of what the numbers are measured from.
    """

    contribution: ClassVar[str] = "gym_preference.unpaired.training_setup:unpaired"
    rows: ClassVar[str] = "feedback"
    objective: ClassVar[str] = "gym_preference.unpaired.objective:UnpairedObjective"
    ftx: Annotated[float, Field(ge=0)] = 0.0
    """SFT loss coefficient: weight of the mean negative log-likelihood per token of the desirable responses, times the number of
    responses in the step for each desirable one, as in LLaMA-Factory."""
    reference_point: ClassVar[str] = ""
    """`module:class` of a `gym_preference.unpaired.reference_point.ReferencePoint`: what log-ratios are measured from."""

    def advice(self, desirable: int, undesirable: int) -> str:
        """Return what to do better with so many desirable and undesirable responses; empty where there is nothing to say."""
        kind = "undesirable" if desirable else "desirable"
        return "" if desirable and undesirable else f"no response is {kind}, so there is nothing to compare: add some"

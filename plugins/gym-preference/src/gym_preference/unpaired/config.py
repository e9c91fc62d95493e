"""Algorithms that learn from judged answers, as a recipe sees them. Nothing heavy."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gym_preference.config import WithReference


class UnpairedPreference(WithReference):
    """Base of the algorithms that learn from single answers and whether each is desirable.

    A loss is a function of one number for each answer, its log-probability less that under the reference, `[answers]`; of
    whether each is desirable; and of what the numbers are measured from.
    """

    contribution: ClassVar[str] = "gym_preference.unpaired.workflow:unpaired"
    rows: ClassVar[str] = "feedback"
    objective: ClassVar[str] = "gym_preference.unpaired.objective:UnpairedObjective"
    ftx: Annotated[float, Field(ge=0)] = 0.0
    """SFT loss coefficient: weight of the mean negative log-likelihood per token of the desirable responses, times the number of
    responses in the step for each desirable one, as in LLaMA-Factory."""
    baseline: ClassVar[str] = ""
    """`module:class` of a `gym_preference.unpaired.reference_point.Baseline`: what log-ratios are measured from."""

    def advice(self, desirable: int, undesirable: int) -> str:
        """Return what to do better with so many desirable and undesirable responses; empty where there is nothing to say."""
        kind = "undesirable" if desirable else "desirable"
        return "" if desirable and undesirable else f"no response is {kind}, so there is nothing to compare: add some"


class KTO(UnpairedPreference):
    """Kahneman-Tversky optimization: good answers are gains and bad ones losses, measured from how far the policy has gone.

        loss = d (1 - sigmoid(beta (r - z)))  for a good answer,  u (1 - sigmoid(beta (z - r)))  for another one

    r: log-ratio of the answer to the reference, summed over its tokens; z: the mean log-ratio of answers to prompts that they
    do not belong to, at least 0, over the whole step; d, u: `desirable_weight`, `undesirable_weight`.

    Use it for: single judgements, such as thumbs up and down, of which there may be far more of one kind.

    Differs: z is estimated over the step and not over a micro-batch, so it does not depend on how a step is cut.
    """

    loss: ClassVar[str] = "gym_preference.unpaired.losses:kto"
    baseline: ClassVar[str] = "gym_preference.unpaired.reference_point:MismatchedKL"
    oracle: ClassVar[str] = "gym_preference.unpaired.naive_losses:kto"

    desirable_weight: Annotated[float, Field(ge=0)] = 1.0
    """Desirable weight: of the loss of a desirable response. All of them together should weigh 1 to 1.33 times the undesirable
    ones."""
    undesirable_weight: Annotated[float, Field(ge=0)] = 1.0
    """Undesirable weight: of the loss of an undesirable response."""

    def advice(self, desirable: int, undesirable: int) -> str:
        """Add the balance that the paper found best."""
        weight, other = desirable * self.desirable_weight, undesirable * self.undesirable_weight
        if not weight * other or 0.99 * other <= weight <= 1.34 * other:
            return super().advice(desirable, undesirable)
        return (
            f"{desirable:,} desirable responses weigh {weight / other:.2f} times as much as {undesirable:,} undesirable ones; "
            f"1 to 1.33 times is best: set `desirable_weight: {other / desirable:.3g}`"
        )


class BCO(UnpairedPreference):
    """Binary classifier optimization: rewards tell good answers from bad ones, measured from the mean of all so far.

        loss = -log sigmoid(beta (r - z))  for a good answer,  -log sigmoid(beta (z - r))  for another one

    r: log-ratio of the answer to the reference, summed over its tokens; z: the mean of all r so far.

    Use it for: single judgements where `kto` saturates: answers that are far on the wrong side go on to pull.

    Differs: z is the mean over all steps so far, where the paper has a moving one; answers are not weighed by how alike the
    prompts of both kinds are.
    """

    loss: ClassVar[str] = "gym_preference.unpaired.losses:bco"
    baseline: ClassVar[str] = "gym_preference.unpaired.reference_point:MeanReward"
    oracle: ClassVar[str] = "gym_preference.unpaired.naive_losses:bco"

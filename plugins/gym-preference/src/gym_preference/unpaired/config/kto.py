"""Options of KTO. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gym_preference.unpaired.config.base import UnpairedPreference


class KTO(UnpairedPreference):
    """Kahneman-Tversky optimization: good responses are gains and bad ones losses, measured from how far the policy has gone.

        loss = d (1 - sigmoid(beta (r - z)))  for a good response,  u (1 - sigmoid(beta (z - r)))  for another one

    r: log-ratio of the response to the reference, summed over its tokens; z: the mean log-ratio of responses to prompts that they
    do not belong to, at least 0, over the whole step; d, u: `desirable_weight`, `undesirable_weight`.

    Use it for: single labels, such as thumbs up and down, of which there may be far more of one kind.

    Differs: z is estimated over the step and not over a micro-batch, so it does not depend on how a step is cut.
    """

    loss: ClassVar[str] = "gym_preference.unpaired.losses:kto"
    reference_point: ClassVar[str] = "gym_preference.unpaired.reference_point:MismatchedKL"
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

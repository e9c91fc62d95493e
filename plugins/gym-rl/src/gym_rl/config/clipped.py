"""Options that the algorithms share which clip the importance ratio. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from gym_rl.config.base import PolicyGradient


class ClippedPolicyGradient(PolicyGradient):
    """Base of the algorithms that clip the importance ratio, that of the policy to the policy that sampled."""

    epsilon: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Clip range: how far below 1 the ratio counts, and above 1 where `epsilon_high` is not set
    (`clip_ratio` in verl)."""
    epsilon_high: Annotated[float | None, Field(ge=0)] = None
    """Upper clip range: how far above 1 the ratio counts; by default `epsilon`."""
    delta: Annotated[float | None, Field(gt=1)] = None
    """Dual clip: the largest ratio that counts where the advantage is negative, above `1 + epsilon_high` (`delta` in TRL,
    `clip_ratio_c` in verl, where it is 3); by default there is none."""

    @model_validator(mode="after")
    def _beyond(self) -> Self:
        if self.delta is not None and self.delta <= 1 + self.clip_range()[1]:
            raise ValueError("`delta` is a ratio, and not above 1 plus the upper clip range")
        return self

    def clip_range(self) -> tuple[float, float]:
        """Return how far below and how far above 1 the ratio counts."""
        return self.epsilon, self.epsilon if self.epsilon_high is None else self.epsilon_high

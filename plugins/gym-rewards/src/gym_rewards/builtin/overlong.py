"""The reward `overlong`: the soft overlong punishment of DAPO, arXiv:2503.14476, equation 13."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from pydantic import PositiveInt, model_validator

from gym_rewards.reward import Reward, RewardInput


class Overlong(Reward):
    """DAPO's soft overlong punishment (equation 13): 0 up to `maximum - buffer` tokens, then falling to -1 at `maximum`."""

    target: ClassVar[str] = "gym_rewards.builtin.overlong:OverlongScore"
    judges_length: ClassVar[bool] = True
    better: ClassVar[tuple[RewardInput, RewardInput] | None] = (
        RewardInput("brief", tokens=100),
        RewardInput("endless", tokens=20_000),
    )

    maximum: PositiveInt = 20_480
    """Most tokens a completion can have (L_max); set it to the limit of the rollouts."""
    buffer: PositiveInt = 4_096
    """Tokens before that over which the punishment grows (L_cache)."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.buffer > self.maximum:
            raise ValueError("`buffer` is larger than `maximum`")
        return self


class OverlongScore:
    """The punishment of DAPO, arXiv:2503.14476, equation 13."""

    def __init__(self, config: Overlong) -> None:
        self.config = config

    def __call__(self, inputs: Sequence[RewardInput]) -> list[float]:
        """Return a number from -1 to 0 for each completion."""
        free = self.config.maximum - self.config.buffer
        return [-min(1.0, max(0, item.tokens - free) / self.config.buffer) + 0.0 for item in inputs]

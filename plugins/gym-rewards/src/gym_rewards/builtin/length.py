"""The reward `length`: completions between two bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Self

from pydantic import Field, PositiveInt, model_validator

from gym_rewards.reward import Reward, RewardInput


class Length(Reward):
    """1 for completions of a length between two bounds, in tokens; outside, less by 1 / `slack` with each token, down to 0."""

    target: ClassVar[str] = "gym_rewards.builtin.length:LengthScore"
    judges_length: ClassVar[bool] = True
    better: ClassVar[tuple[RewardInput, RewardInput] | None] = (
        RewardInput("brief", tokens=100),
        RewardInput("lengthy", tokens=600),
    )

    minimum: Annotated[int, Field(ge=0)] = 0
    """Fewest tokens that earn 1. Equal bounds are a target."""
    maximum: Annotated[int, Field(ge=0)] = 512
    """Most tokens that earn 1."""
    slack: PositiveInt = 128
    """Tokens beyond a bound at which nothing is earned."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.minimum > self.maximum:
            raise ValueError("`minimum` is larger than `maximum`")
        return self


class LengthScore:
    """Counts tokens."""

    def __init__(self, config: Length) -> None:
        self.config = config

    def __call__(self, inputs: Sequence[RewardInput]) -> list[float]:
        """Return a number from 0 to 1 for each completion."""
        return [self._score(item.tokens) for item in inputs]

    def _score(self, tokens: int) -> float:
        beyond = max(self.config.minimum - tokens, tokens - self.config.maximum, 0)
        return max(0.0, 1.0 - beyond / self.config.slack)

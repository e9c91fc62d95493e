"""The reward `environment`."""

from __future__ import annotations

from collections.abc import Sequence

from gym_rewards import RewardInput
from gym_rl.environments.config import EnvironmentReward


class EnvironmentScore:
    """Returns what was given."""

    def __init__(self, config: EnvironmentReward) -> None:
        """Take no options."""

    def __call__(self, inputs: Sequence[RewardInput]) -> list[float | None]:
        """Return a number for each completion; None where there was no environment."""
        return [item.environment_reward for item in inputs]

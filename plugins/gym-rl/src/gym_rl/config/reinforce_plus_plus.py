"""Options of REINFORCE++. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gym_rl.config.base import KLEstimator
from gym_rl.config.clipped import ClippedPolicyGradient


class ReinforcePP(ClippedPolicyGradient):
    """REINFORCE++: the return of each token, whitened over all tokens of the round; no groups, no critic."""

    objective: ClassVar[str] = "gym_rl.clipped_objectives:ClippedTokens"
    credit: ClassVar[str] = "gym_rl.rollouts.compute_advantages:whitened_returns"

    group_size: Annotated[int, Field(ge=1)] = 1
    """Group size: completions sampled for each prompt."""
    kl_estimator: KLEstimator = "k1_in_reward"
    """KL estimator, as for all policy gradients; by default subtracted from the reward of each token."""

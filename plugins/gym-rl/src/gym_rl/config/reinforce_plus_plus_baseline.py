"""Options of REINFORCE++-baseline. Imports nothing heavy."""

from __future__ import annotations

from typing import ClassVar

from gym_rl.config.base import KLEstimator
from gym_rl.config.clipped import ClippedPolicyGradient


class ReinforcePPBaseline(ClippedPolicyGradient):
    """REINFORCE++-baseline: reward minus the mean of its group, whitened over the round; with PPO's clipped loss."""

    objective: ClassVar[str] = "gym_rl.clipped_objectives:ClippedTokens"
    advantage: ClassVar[str] = "gym_rl.formulas.advantages:reinforce_pp_baseline"

    kl_estimator: KLEstimator = "k2"
    """KL estimator, as for all policy gradients; by default `k2` as a term of the loss."""

"""Options of RLOO. Imports nothing heavy."""

from __future__ import annotations

from typing import ClassVar

from gym_rl.config.base import KLEstimator, LossAggMode, PolicyGradient


class RLOO(PolicyGradient):
    """REINFORCE leave-one-out: the baseline of a completion is the mean reward of the other completions to its prompt."""

    objective: ClassVar[str] = "gym_rl.unclipped_objective:Reinforce"
    advantage: ClassVar[str] = "gym_rl.formulas.advantages:rloo"

    loss_agg_mode: LossAggMode = "seq-mean-token-sum"
    """Loss aggregation, as for all policy gradients; by default the mean over completions of the sum over tokens."""
    kl_estimator: KLEstimator = "k1_in_reward"
    """KL estimator, as for all policy gradients; by default subtracted from the reward of each token."""

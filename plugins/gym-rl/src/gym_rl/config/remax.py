"""Options of ReMax. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gym_rl.config.base import KLEstimator, LossAggMode, PolicyGradient


class ReMax(PolicyGradient):
    """ReMax: REINFORCE whose baseline is the reward of the greedy completion to the same prompt; no groups, no critic."""

    objective: ClassVar[str] = "gym_rl.unclipped_objective:Reinforce"
    credit: ClassVar[str] = "gym_rl.rollouts.compute_advantages:against_greedy"
    greedy_baseline: ClassVar[bool] = True

    group_size: Annotated[int, Field(ge=1)] = 1
    """Group size: completions sampled for each prompt, beside the greedy one, which is not trained on."""
    loss_agg_mode: LossAggMode = "seq-mean-token-sum"
    """Loss aggregation, as for all policy gradients; by default the mean over completions of the sum over tokens."""
    kl_estimator: KLEstimator = "k1_in_reward"
    """KL estimator, as for all policy gradients; by default subtracted from the reward of each token."""

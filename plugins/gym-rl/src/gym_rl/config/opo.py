"""Options of OPO. Imports nothing heavy."""

from __future__ import annotations

from typing import ClassVar

from gym_rl.config.base import LossAggMode, PolicyGradient


class OPO(PolicyGradient):
    """OPO: REINFORCE with the baseline of least variance, the mean reward of a group weighted by the length of completions.

    The paper takes one step a round, so that the policy that learns is the one that sampled, and no KL penalty, as the defaults.
    """

    objective: ClassVar[str] = "gym_rl.unclipped_objective:Reinforce"
    credit: ClassVar[str] = "gym_rl.rollouts.compute_advantages:length_weighted"

    loss_agg_mode: LossAggMode = "seq-mean-token-sum"
    """Loss aggregation, as for all policy gradients; by default the mean over completions of the sum over tokens."""

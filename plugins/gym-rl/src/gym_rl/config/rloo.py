"""Options of RLOO. Imports nothing heavy."""

from __future__ import annotations

from typing import ClassVar, Literal

from gym_rl.config.base import PolicyGradient


class RLOO(PolicyGradient):
    """REINFORCE leave-one-out: the baseline of a completion is the mean reward of the other completions to its prompt."""

    objective: ClassVar[str] = "gym_rl.unclipped_objective:Reinforce"
    advantage: ClassVar[str] = "gym_rl.formulas.advantages:rloo"

    kl_estimator: Literal["k2", "k3", "k3_is", "k1_in_reward"] = "k1_in_reward"
    """KL estimator, as for all policy gradients; by default subtracted from the reward of each token."""

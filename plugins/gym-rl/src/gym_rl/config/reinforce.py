"""RLOO and REINFORCE++ as a recipe sees them. Nothing heavy."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gym_rl.config.base import ClippedPolicyGradient, PolicyGradient


class RLOO(PolicyGradient):
    """REINFORCE leave-one-out: the baseline of a completion is the mean reward of the other completions to its prompt."""

    objective: ClassVar[str] = "gym_rl.reinforce:Reinforce"
    advantage: ClassVar[str] = "gym_rl.formulas.advantages:rloo"

    kl_estimator: Literal["k2", "k3", "k3_is", "k1_in_reward"] = "k1_in_reward"
    """KL estimator, as for all policy gradients; by default subtracted from the reward of each token."""


class ReinforcePP(ClippedPolicyGradient):
    """REINFORCE++: the return of each token, whitened over all tokens of the round; no groups, no critic."""

    objective: ClassVar[str] = "gym_rl.clipped_objectives:ClippedTokens"
    credit: ClassVar[str] = "gym_rl.rollouts.compute_advantages:whitened_returns"

    group_size: Annotated[int, Field(ge=1)] = 1
    """Group size: completions sampled for each prompt."""
    kl_estimator: Literal["k2", "k3", "k3_is", "k1_in_reward"] = "k1_in_reward"
    """KL estimator, as for all policy gradients; by default subtracted from the reward of each token."""


class ReinforcePPBaseline(ClippedPolicyGradient):
    """REINFORCE++-baseline: reward minus the mean of its group, whitened over the round; with PPO's clipped loss."""

    objective: ClassVar[str] = "gym_rl.clipped_objectives:ClippedTokens"
    advantage: ClassVar[str] = "gym_rl.formulas.advantages:reinforce_pp_baseline"

    kl_estimator: Literal["k2", "k3", "k3_is", "k1_in_reward"] = "k2"
    """KL estimator, as for all policy gradients; by default `k2` as a term of the loss."""

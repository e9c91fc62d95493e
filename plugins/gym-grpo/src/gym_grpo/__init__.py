"""gym-grpo: GRPO and what came of it. Configuration alone; the code that runs is in `objective.py`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from gym_rewards import Overlong, Reward
from gym_rl import ClippedPolicyGradient, GroupRelative, KLTerm, LossAggMode, ScaleRewards

__version__ = "0.1.0"
__all__ = ["BNPO", "CISPO", "DAPO", "GDPO", "GMPO", "GRPO", "SAPO", "DrGRPO"]


class GRPO(GroupRelative, ClippedPolicyGradient):
    """Group-relative policy optimization: the advantage is the reward, normalized within the completions to one prompt."""

    objective: ClassVar[str] = "gym_rl.clipped_objectives:ClippedTokens"

    loss_agg_mode: LossAggMode = "seq-mean-token-mean"
    """Loss aggregation, as for all policy gradients; by default every completion counts the same, and its tokens share it."""


class DrGRPO(GroupRelative, ClippedPolicyGradient):
    """Dr. GRPO: GRPO without dividing by the standard deviation of rewards or by the length of completions, which bias it."""

    objective: ClassVar[str] = "gym_rl.clipped_objectives:ClippedTokens"

    loss_agg_mode: LossAggMode = "seq-mean-token-sum-norm"
    """Loss aggregation, as for all policy gradients; by default every token counts as if all completions were as long
    as they may be."""
    scale_rewards: ScaleRewards = "none"
    """Scale rewards: what divides reward minus the mean of its group, as for `grpo`; by default nothing."""


class DAPO(GroupRelative, ClippedPolicyGradient):
    """DAPO: GRPO with a token-level loss, clip-higher, dynamic sampling and overlong shaping; for long reasoning."""

    objective: ClassVar[str] = "gym_rl.clipped_objectives:ClippedTokens"

    epsilon_high: Annotated[float | None, Field(ge=0)] = 0.28
    """Upper clip range (clip-higher): larger than `epsilon`, so that unlikely tokens can become likely."""
    max_resample: Annotated[int, Field(ge=0)] = 3
    """Dynamic sampling: how often to sample further prompts in place of groups whose rewards are all equal; 0 is off."""
    mask_truncated_completions: bool = True
    """Mask truncated completions (overlong filtering): those that reach `max_new_tokens` are left out of the loss. Their rewards
    still count in the advantages of others."""
    overlong_buffer: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Overlong buffer (soft overlong punishment): the last share of `max_new_tokens`, over which the reward of a completion falls
    by up to 1, where no reward of the recipe measures length; 0 is off."""

    def judges(self) -> list[Reward]:
        """Return the rewards of the recipe, and the punishment of long completions."""
        buffer = round(self.overlong_buffer * self.max_new_tokens)
        if not buffer or any(reward.judges_length for reward in self.rewards):
            return self.rewards
        return [*self.rewards, Overlong(maximum=self.max_new_tokens, buffer=buffer)]


class BNPO(ClippedPolicyGradient):
    """BNPO: GRPO whose rewards are normalized by a Beta distribution fitted to the success rates of prompts; token-level loss.

    Not what TRL calls `bnpo`: that is GRPO's advantage with every token of a pass alike, here `grpo` with
    `loss_agg_mode: token-mean`.
    """

    objective: ClassVar[str] = "gym_rl.clipped_objectives:ClippedTokens"
    credit: ClassVar[str] = "gym_grpo.credit:beta"

    kl_estimator: KLTerm = "k3_is"
    """KL estimator (`gym_rl.formulas.kl`) as a term of the loss."""
    min_reward: float = 0.0
    """Smallest reward of a completion, summed over all rewards."""
    max_reward: float = 1.0
    """Largest reward of a completion."""

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.min_reward >= self.max_reward:
            raise ValueError("`min_reward` is not below `max_reward`")
        return self


class CISPO(GroupRelative):
    """CISPO: clips the importance weight of a token instead of its loss, so that every token keeps its gradient."""

    objective: ClassVar[str] = "gym_grpo.objective:CISPOLoss"

    epsilon_high: Annotated[float, Field(gt=0)] = 5.0
    """Upper clip bound of the importance weight: the ratio itself, not what is added to 1."""


class SAPO(GroupRelative):
    """SAPO: a soft gate in place of the clip; a token counts less the further its ratio is from 1, and none is cut off."""

    objective: ClassVar[str] = "gym_grpo.objective:SAPOLoss"

    loss_agg_mode: LossAggMode = "seq-mean-token-mean"
    """Loss aggregation, as for all policy gradients; by default every completion counts the same, and its tokens share it."""
    sapo_temperature_pos: Annotated[float, Field(gt=0)] = 1.0
    """Temperature of the gate where the advantage is positive: the higher, the sooner a token counts less. `tau_pos` in verl."""
    sapo_temperature_neg: Annotated[float, Field(gt=0)] = 1.05
    """Temperature of the gate elsewhere: above the other, because bad completions make updates less stable. `tau_neg` in verl."""


class GMPO(GroupRelative):
    """GMPO: the geometric mean of the token ratios of a completion in place of the mean of token losses; outliers move it less.

    `geo_mean` in verl.
    """

    objective: ClassVar[str] = "gym_grpo.objective:GMPOLoss"

    loss_agg_mode: LossAggMode = "seq-mean-token-mean"
    """Loss aggregation, as for all policy gradients; by default every completion counts the same, and its tokens share it."""
    epsilon: Annotated[float, Field(ge=0)] = 0.4
    """Clip range: how far below 0 the logarithm of the ratio counts, where the advantage is negative."""
    epsilon_high: Annotated[float, Field(ge=0)] = 0.4
    """Upper clip range: how far above 0 the logarithm of the ratio counts, where the advantage is positive."""


class GDPO(ClippedPolicyGradient):
    """GDPO: GRPO for several rewards; each is normalized within its group by itself, so that none drowns another.

    The sum, by the weights of the rewards, is whitened over the round. `multi_objective_aggregation: normalize_then_sum` in TRL.
    """

    objective: ClassVar[str] = "gym_rl.clipped_objectives:ClippedTokens"
    credit: ClassVar[str] = "gym_grpo.credit:decoupled"

    loss_agg_mode: LossAggMode = "seq-mean-token-mean"
    """Loss aggregation, as for all policy gradients; by default every completion counts the same, and its tokens share it."""
    kl_estimator: KLTerm = "k3_is"
    """KL estimator (`gym_rl.formulas.kl`) as a term of the loss."""

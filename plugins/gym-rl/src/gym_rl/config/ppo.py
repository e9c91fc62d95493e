"""PPO as a recipe sees it. Nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from gym_data.location import ModelName
from gym_rl.config.base import ClippedPolicyGradient, KLEstimator
from gym_torch.config import Further


class PPO(ClippedPolicyGradient):
    """Proximal policy optimization: a clipped policy loss with GAE advantages from a critic, which is trained as well."""

    contribution: ClassVar[str] = "gym_rl.ppo:rollouts_with_values"
    context_parallel: ClassVar[bool] = False  # a critic of its own computes whole rows
    objective: ClassVar[str] = "gym_rl.ppo:PPOLoss"
    credit: ClassVar[str] = "gym_rl.ppo:gae_advantages"

    group_size: Annotated[int, Field(ge=1)] = 1
    """Group size: completions sampled for each prompt. The critic needs no group, but a prompt is computed once for all of it."""
    kl_estimator: KLEstimator = "k1_in_reward"
    """KL estimator, as for all policy gradients; by default subtracted from the reward of each token."""
    num_mini_batches: PositiveInt = 4
    """Mini-batches: optimizer steps for the completions of one round."""
    critic: ModelName | None = None
    """Critic (value model): a family, a folder or a Hub id, perhaps with a value head beside its weights. It is loaded beside the
    policy and trained with the same adapter. Without one, a value head on the hidden states of the policy."""
    vf_coef: Annotated[float, Field(ge=0)] = 0.5
    """Value function coefficient: weight of the value loss beside the policy loss."""
    cliprange_value: Annotated[float, Field(gt=0)] = 0.2
    """Value clip range: how far a value counts away from the one at the beginning of the round."""
    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Discount factor (gamma) of the rewards, for each token."""
    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 0.95
    """GAE lambda: 0 takes the one-step TD error as the advantage, 1 the return minus the value (`lam` in TRL)."""

    def further(self) -> Sequence[Further]:
        """Add a critic of its own."""
        return (
            *super().further(),
            *((Further(self.critic, trains=True, key="algorithm.critic"),) if self.critic else ()),
        )

"""PPO as a recipe sees it. Nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from gym_core import Recipe, RecipeError
from gym_data.location import ModelName
from gym_optim.kinds import Optimizer
from gym_rl.config.base import KLEstimator
from gym_rl.config.clipped import ClippedPolicyGradient
from gym_torch.config import Further
from gym_torch.kinds import part


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
    critic_warmup: NonNegativeInt = 0
    """Critic warm-up: rounds at the beginning in which the critic alone learns, and the policy stays as it was
    (`critic_warmup` in verl, `freezing_actor_steps` in OpenRLHF)."""
    vf_coef: Annotated[float, Field(ge=0)] = 0.5
    """Value function coefficient: weight of the value loss beside the policy loss."""
    cliprange_value: Annotated[float, Field(gt=0)] = 0.2
    """Value clip range: how far a value counts away from the one at the beginning of the round."""
    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Discount factor (gamma) of the rewards, for each token."""
    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 0.95
    """GAE lambda: 0 takes the one-step TD error as the advantage, 1 the return minus the value (`lam` in TRL)."""

    @model_validator(mode="after")
    def _warms_up(self) -> Self:
        if self.critic_warmup and not self.vf_coef:
            raise ValueError("`critic_warmup` has the critic alone learn, and `vf_coef: 0` has it learn nothing")
        return self

    def only_beside(self, number: int) -> bool:
        """Return whether the round is one of the warm-up."""
        return number < self.critic_warmup

    def check_recipe(self, recipe: Recipe) -> None:
        """Raise RecipeError where an optimizer would move the policy in the warm-up; and what the base raises."""
        super().check_recipe(recipe)
        optimizer = part(recipe, Optimizer)
        if self.critic_warmup and optimizer and optimizer.updates_in_backward():
            raise RecipeError(
                "an optimizer in the backward pass moves the policy with the critic",
                key="algorithm.critic_warmup",
                fix="leave it out, or set another `optimizer`, such as adamw",
            )

    def further(self) -> Sequence[Further]:
        """Add a critic of its own."""
        return (
            *super().further(),
            *((Further(self.critic, trains=True, key="algorithm.critic"),) if self.critic else ()),
        )

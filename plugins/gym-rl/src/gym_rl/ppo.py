"""Proximal policy optimization (arXiv:1707.06347): a critic says what was to be expected, and learns from what came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gym_rl import PPO
from gym_rl.clipped_objectives import ClippedTokens
from gym_rl.critic import ActorCritic, SeparateCritic, SharedCritic
from gym_rl.formulas import policy_losses
from gym_rl.formulas.advantages import gae, whiten
from gym_rl.rollouts.batch import RolloutBatch
from gym_rl.rollouts.compute_advantages import token_rewards
from gym_rl.rollouts.experience import Experience
from gym_rl.rollouts.prompt import Prompt
from gym_rl.training_setup import scored_rollouts
from gym_torch.auxiliary_module import AuxiliaryModule
from gym_torch.contribution import Contribution, Parts
from gym_torch.further_models import TrainedFurther
from gym_torch.metrics import Mean, Metrics
from gym_torch.model.loading import LoadedModel
from gym_torch.model.scalar_head import ScalarHead, head_of
from gym_torch.objective import Scores
from gym_torch.policy import Policy, evaluating


def rollouts_with_values(parts: Parts[PPO, PPOLoss, ActorCritic, Prompt]) -> Contribution:
    """Return rollouts, and ask the critic about every token of a round when the round begins."""

    def values(batch: RolloutBatch) -> Tensor:
        with evaluating(parts.policy):
            return parts.policy.values(batch)

    return scored_rollouts(parts, {"values": values})


class PPOLoss(ClippedTokens):
    """The clipped loss of the policy and the clipped squared error of the critic."""

    config: PPO
    policy: type[Policy[Any]] = ActorCritic

    def auxiliary_modules(self, model: PreTrainedModel) -> Mapping[str, AuxiliaryModule]:
        """Return a critic on the states of the policy."""
        return {"critic": SharedCritic(ScalarHead.of(model))}

    def load_auxiliary_modules(
        self, model: LoadedModel, further: Sequence[TrainedFurther] = ()
    ) -> Mapping[str, AuxiliaryModule]:
        """Return the critic that the options name, with the value head that lies beside its weights."""
        separate = [SeparateCritic(other) for other in further]
        return {"critic": separate[0] if separate else SharedCritic(head_of(model))}

    def loss(self, policy: Scores[RolloutBatch], batch: RolloutBatch) -> tuple[Tensor, Metrics]:
        """Return the aggregated loss of both, and each."""
        config = self.config
        *scores, values = policy(batch)
        loss, metrics = super().loss(lambda _: torch.stack(scores).squeeze(0), batch)
        old, returns = batch.columns["values"], batch.columns["returns"]
        errors = policy_losses.value_loss(values, old, returns.nan_to_num(), config.cliprange_value)
        errors = torch.where(returns.isnan(), 0.0, errors)
        value_loss = self.aggregate.total(errors, batch.owner, batch.responses)
        return loss + config.vf_coef * value_loss, {**metrics, "value_loss": Mean(value_loss)}


def gae_advantages(experience: Experience, config: PPO) -> dict[str, Tensor]:
    """Return whitened advantages and the returns that the critic learns: generalized advantage estimates over the round.

    What a completion earns is `gym_rl.rollouts.compute_advantages.token_rewards`. One without a reward has advantages of 0 and
    returns of NaN.
    """
    owner, values = experience.owner, experience.columns["values"].double()
    judged = ~experience.rewards.isnan()[owner]
    advantages = gae(
        token_rewards(experience, config), values, owner, len(experience.lengths), config.gamma, config.gae_lambda
    )
    whitened = torch.zeros_like(advantages).masked_scatter(judged, whiten(advantages[judged]))
    returns = torch.where(judged, advantages + values, torch.nan)
    return {"advantages": whitened.float(), "returns": returns.float()}

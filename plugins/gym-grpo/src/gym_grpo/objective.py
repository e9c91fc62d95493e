"""Losses of tokens that are not clipped as PPO's are."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from gym_grpo import CISPO, GMPO, SAPO
from gym_rl.formulas import policy_losses
from gym_rl.formulas.importance_ratio import log_ratio, token_ratio
from gym_rl.objective import PolicyObjective
from gym_rl.rollouts.batch import RolloutBatch


class CISPOLoss(PolicyObjective):
    """Log-likelihood weighted by advantage and capped ratio."""

    config: CISPO

    def tokens(self, log_probs: Tensor, batch: RolloutBatch) -> Mapping[str, Tensor]:
        """Return the loss of each token, and whether its weight is capped."""
        loss = policy_losses.cispo(log_probs, batch.old_log_probs, batch.advantages, self.config.epsilon_high)
        capped = token_ratio(log_probs.detach(), batch.old_log_probs) > self.config.epsilon_high
        return {"loss": loss, "cispo_clip_ratio": capped.float()}


class SAPOLoss(PolicyObjective):
    """A soft gate on the ratio of each token."""

    config: SAPO

    def tokens(self, log_probs: Tensor, batch: RolloutBatch) -> Mapping[str, Tensor]:
        """Return the loss of each token."""
        rising, falling = self.config.sapo_temperature_pos, self.config.sapo_temperature_neg
        return {"loss": policy_losses.sapo(log_probs, batch.old_log_probs, batch.advantages, rising, falling)}


class GMPOLoss(PolicyObjective):
    """The loss of each completion, as that of each of its tokens: their mean is the completion's."""

    config: GMPO

    def tokens(self, log_probs: Tensor, batch: RolloutBatch) -> Mapping[str, Tensor]:
        """Return the loss of each token's completion, and whether clipping takes the token's gradient away."""
        bounds, whole = (self.config.epsilon, self.config.epsilon_high), batch.sequence_advantages
        loss = policy_losses.gmpo(log_probs, batch.old_log_probs, whole, batch.owner, batch.responses, *bounds)
        apart = log_ratio(log_probs.detach(), batch.old_log_probs)
        held = policy_losses.bounded_log_ratio(apart, whole[batch.owner], *bounds) != apart
        return {"loss": loss[batch.owner], "clip_ratio/region_mean": held.float()}

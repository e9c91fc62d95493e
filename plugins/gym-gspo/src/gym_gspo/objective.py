"""Losses of completions that are not clipped as GSPO's are."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from gym_gspo import VESPO, GSPOToken
from gym_rl.clipped_objectives import clip_ratios
from gym_rl.formulas import policy_losses
from gym_rl.formulas.importance_ratio import mean_ratio, sequence_ratio
from gym_rl.objective import PolicyObjective
from gym_rl.rollouts.batch import RolloutBatch


class GSPOTokenLoss(PolicyObjective):
    """GSPO's loss, token by token."""

    config: GSPOToken

    def tokens(self, log_probs: Tensor, batch: RolloutBatch) -> Mapping[str, Tensor]:
        """Return the loss of each token, and whether clipping takes its gradient away."""
        (low, high), dual, owner, each = self.config.clip_range(), self.config.delta, batch.owner, batch.advantages
        ratio = mean_ratio(log_probs.detach(), batch.old_log_probs, owner, batch.responses)[owner]
        loss = policy_losses.gspo_token(log_probs, batch.old_log_probs, each, owner, batch.responses, low, high, dual)
        return {"loss": loss, **clip_ratios(ratio, each, low, high, dual)}


class VESPOLoss(PolicyObjective):
    """Log-likelihood weighted by advantage and by how far the completion is from the policy that sampled it."""

    config: VESPO

    def tokens(self, log_probs: Tensor, batch: RolloutBatch) -> Mapping[str, Tensor]:
        """Return the loss of each token, and the weight of its completion."""
        config, owner, each = self.config, batch.owner, batch.advantages
        rising, falling = (config.vespo_k_pos, config.vespo_lambda_pos), (config.vespo_k_neg, config.vespo_lambda_neg)
        ratio = sequence_ratio(log_probs.detach(), batch.sampling_log_probs, owner, batch.responses)[owner]
        weight = policy_losses.vespo_weight(ratio, each, rising, falling)
        return {"loss": policy_losses.reinforce(log_probs, weight * each), "vespo/phi_seq_mean": weight}

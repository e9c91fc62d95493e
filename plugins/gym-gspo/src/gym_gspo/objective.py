"""The losses of completions, every completion alike."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from gym_gspo import GSPOToken
from gym_rl.clipped_objectives import ClippedSequences, clip_ratios
from gym_rl.formulas import policy_losses
from gym_rl.formulas.importance_ratio import mean_ratio
from gym_rl.formulas.loss_aggregation import LossAggregation, SequenceMeanTokenMean
from gym_rl.objective import PolicyObjective
from gym_rl.rollouts.batch import RolloutBatch


class GSPOLoss(ClippedSequences):
    """The clipped loss of each completion."""

    aggregate: LossAggregation = SequenceMeanTokenMean()


class GSPOTokenLoss(PolicyObjective):
    """The same, token by token."""

    config: GSPOToken
    aggregate: LossAggregation = SequenceMeanTokenMean()

    def tokens(self, log_probs: Tensor, batch: RolloutBatch) -> Mapping[str, Tensor]:
        """Return the loss of each token, and whether clipping takes its gradient away."""
        (low, high), dual, owner, each = self.config.clip_range(), self.config.delta, batch.owner, batch.advantages
        ratio = mean_ratio(log_probs.detach(), batch.old_log_probs, owner, batch.responses)[owner]
        loss = policy_losses.gspo_token(log_probs, batch.old_log_probs, each, owner, batch.responses, low, high, dual)
        return {"loss": loss, **clip_ratios(ratio, each, low, high, dual)}

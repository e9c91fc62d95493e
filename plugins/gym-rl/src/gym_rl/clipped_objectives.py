"""Policy losses that hold the ratio to the policy that sampled within bounds."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from gym_rl.config.clipped import ClippedPolicyGradient
from gym_rl.formulas import policy_losses
from gym_rl.formulas.importance_ratio import mean_ratio, token_ratio
from gym_rl.objective import PolicyObjective
from gym_rl.rollouts.batch import RolloutBatch


def clip_ratios(
    ratio: Tensor, advantages: Tensor, low: float, high: float, dual: float | None = None
) -> dict[str, Tensor]:
    """Return whether `gym_rl.formulas.policy_losses.clipped_surrogate` takes the gradient away: at all, and at either bound of
    the clip; each as ratios, 0 or 1, by its name in the log.
    """
    ratio = ratio.detach()
    either = policy_losses.is_clipped(ratio, advantages, low, high)
    found = {
        "region_mean": policy_losses.is_clipped(ratio, advantages, low, high, dual),
        "low_mean": either & (advantages < 0),
        "high_mean": either & (advantages > 0),
    }
    return {f"clip_ratio/{name}": held.float() for name, held in found.items()}


class ClippedTokens(PolicyObjective):
    """PPO's loss of each token."""

    config: ClippedPolicyGradient

    def tokens(self, log_probs: Tensor, batch: RolloutBatch) -> Mapping[str, Tensor]:
        """Return the loss of each token, and whether clipping takes its gradient away."""
        (low, high), each = self.config.clip_range(), batch.advantages
        ratio = token_ratio(log_probs, batch.old_log_probs)
        loss = policy_losses.clipped_surrogate(ratio, each, low, high, self.config.delta)
        return {"loss": loss, **clip_ratios(ratio, each, low, high, self.config.delta)}


class ClippedSequences(PolicyObjective):
    """GSPO's loss of each completion, as that of each of its tokens: their mean is the completion's."""

    config: ClippedPolicyGradient

    def tokens(self, log_probs: Tensor, batch: RolloutBatch) -> Mapping[str, Tensor]:
        """Return the loss of each token's completion, and whether clipping takes its gradient away."""
        (low, high), each = self.config.clip_range(), batch.sequence_advantages
        ratio = mean_ratio(log_probs, batch.old_log_probs, batch.owner, batch.responses)
        loss = policy_losses.clipped_surrogate(ratio, each, low, high, self.config.delta)
        of_completions = {"loss": loss, **clip_ratios(ratio, each, low, high, self.config.delta)}
        return {name: values[batch.owner] for name, values in of_completions.items()}

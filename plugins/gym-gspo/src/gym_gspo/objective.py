"""The losses of answers, every answer alike."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from gym_gspo import GSPOToken
from gym_rl import losses
from gym_rl.aggregate import Aggregate, AnswerMean
from gym_rl.clipped import ClippedAnswers
from gym_rl.objective import PolicyObjective, RolloutBatch


class GSPOLoss(ClippedAnswers):
    """The clipped loss of each answer."""

    aggregate: Aggregate = AnswerMean()


class GSPOTokenLoss(PolicyObjective):
    """The same, token by token."""

    config: GSPOToken
    aggregate: Aggregate = AnswerMean()

    def tokens(self, log_probs: Tensor, batch: RolloutBatch) -> Mapping[str, Tensor]:
        """Return the loss of each token."""
        low, high, owner = self.config.clip_low, self.config.clip_high, batch.owner
        return {"loss": losses.gspo_token(log_probs, batch.old, batch.advantages, owner, batch.answers, low, high)}

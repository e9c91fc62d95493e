"""RLOO, OPO and the like: the score function weighted by an advantage of whole completions."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from gym_rl.formulas import policy_losses
from gym_rl.formulas.importance_ratio import sequence_ratio
from gym_rl.objective import PolicyObjective
from gym_rl.rollouts.batch import RolloutBatch


class Reinforce(PolicyObjective):
    """-A sg[ratio of the completion] log pi(completion): on the policy that sampled, REINFORCE."""

    def tokens(self, log_probs: Tensor, batch: RolloutBatch) -> Mapping[str, Tensor]:
        """Return the loss of each token."""
        ratio = sequence_ratio(log_probs.detach(), batch.old_log_probs, batch.owner, batch.responses)
        return {"loss": policy_losses.reinforce(log_probs, ratio[batch.owner] * batch.advantages)}

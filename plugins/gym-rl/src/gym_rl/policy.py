"""The policy as an objective of reinforcement learning sees it: log-probabilities, and entropies where they are asked for."""

from __future__ import annotations

import torch
from torch import Tensor

from gym_rl.rollouts.batch import RolloutBatch
from gym_torch.model.log_probs import log_probs_and_entropies
from gym_torch.policy import Policy


class RolloutPolicy(Policy[RolloutBatch]):
    """A policy whose batches say whether its entropy counts."""

    def forward(self, batch: RolloutBatch) -> Tensor:
        """Return what `scored` does."""
        return self.scored(batch)

    def scored(self, batch: RolloutBatch, hidden: Tensor | None = None) -> Tensor:
        """Return log-probabilities of `batch.targets` `[n]`; with `batch.entropy` these and entropies, `[2, n]`. All fp32.

        `hidden` are the states of the targets where those are known.
        """
        if not batch.entropy:
            return self.log_probs(batch, hidden)
        with torch.autocast(batch.tokens.device.type, torch.bfloat16, enabled=self.bf16):
            states = self.hidden(batch) if hidden is None else hidden
            return log_probs_and_entropies(states, self.head, batch.targets, batch.nucleus, self.chunk)

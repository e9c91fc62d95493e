"""The policy as an objective of reinforcement learning sees it: log-probabilities, and, where asked for, entropies and a KL."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gym_rl.rollouts.batch import RolloutBatch
from gym_torch.compared_policy import logits_beside
from gym_torch.model.log_probs import log_probs_and_entropies
from gym_torch.policy import Policy, evaluating
from gym_torch.reference import Reference, Scorer
from gym_torch.rounding import rounding


class RolloutPolicy(Policy[RolloutBatch]):
    """A policy whose batches say whether its entropy counts, and how far it is from its reference over the whole vocabulary."""

    reference: Reference | Scorer | None = None  #: what `batch.full_kl` is the divergence from; in a plan there is none

    def forward(self, batch: RolloutBatch) -> Tensor:
        """Return what `scored` does."""
        return self.scored(batch)

    def scored(self, batch: RolloutBatch, hidden: Tensor | None = None) -> Tensor:
        """Return log-probabilities of `batch.targets` `[n]`; where the batch asks for more these, entropies and KL(policy ||
        reference) `[3, n]`, the last 0 where it is not asked for. All fp32.

        `hidden` are the states of the targets where those are known.
        """
        if not (batch.entropy or batch.full_kl):
            return self.log_probs(batch, hidden)
        with rounding(batch.tokens.device, self.precision):
            other = None
            if batch.full_kl:  # the routers of the reference choose for themselves
                other = logits_beside(self.reference, replace(batch, experts=None))
            states = self.hidden(batch) if hidden is None else hidden
            chunk = self.chunk // 2 if other else self.chunk  # the logits of both exist at a time
            found = log_probs_and_entropies(states, self.head, batch.targets, batch.nucleus, max(1, chunk), other)
            return found if other else torch.cat([found, torch.zeros_like(found[:1])])


class Entropies:
    """Says how unsure a policy is at each token of a batch."""

    def __init__(self, policy: RolloutPolicy) -> None:
        """Take the policy, as it is at each call."""
        self.policy = policy

    @torch.no_grad()
    def __call__(self, batch: RolloutBatch) -> Tensor:
        """Return the entropy `[n]`, in nats, of the distribution that each target was drawn from."""
        with evaluating(self.policy):
            return self.policy.scored(replace(batch, entropy=True, full_kl=False))[1]

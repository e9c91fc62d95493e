"""Losses of fine-tuning in which tokens count differently: DFT (arXiv:2508.05629), EAFT (arXiv:2601.02151) and ASFT
(arXiv:2509.23753).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gym_sft import ASFT, EAFT
from gym_sft.accuracy import evaluation
from gym_sft.objective import Measured
from gym_torch.batch import Batch
from gym_torch.compared_policy import ComparedPolicy, beside_reference
from gym_torch.contribution import Contribution, Parts, samples
from gym_torch.metrics import Mean, Metrics
from gym_torch.model.log_probs import map_logits
from gym_torch.objective import Objective, Scores
from gym_torch.policy import Policy
from gym_torch.rounding import rounding

MOST = 20  #: tokens of which the entropy is taken
SCALE = 3.0  #: about the largest entropy that as many tokens have, ln 20


class Dynamic(Measured):
    """DFT: the negative log-likelihood of each token, weighted with its probability."""

    def loss(self, policy: Scores[Batch], batch: Batch) -> tuple[Tensor, Metrics]:
        """Return the summed losses of the tokens, and how probable they were."""
        log_probs, metrics = self.log_probs(policy, batch)
        believed = log_probs.detach().exp()
        return -(believed * log_probs).sum(), {"probability": Mean(believed.sum()), **metrics}


class EntropyPolicy(Policy[Batch]):
    """A policy that says how unsure it is of each label."""

    def forward(self, batch: Batch) -> Tensor:
        """Return log p and the entropy of the most probable tokens, without a gradient, at each label: `[2, n]`, fp32."""

        def score(logits: Tensor, rows: slice) -> Tensor:
            own = logits.log_softmax(1).gather(1, batch.targets[rows, None])[:, 0]
            with torch.no_grad():
                top = logits.topk(min(MOST, logits.shape[1]), dim=1).values.log_softmax(1)
                entropy = -(top.exp() * top).sum(1)
            return torch.stack([own, entropy], 1)

        with rounding(batch.tokens.device, self.precision):
            return map_logits(self.hidden(batch), self.head, score, self.chunk).T


class EntropyAdaptive(Objective[Batch]):
    """EAFT: the negative log-likelihood of each token, weighted with a power of the entropy at it."""

    config: EAFT
    policy: type[Policy[Any]] = EntropyPolicy

    def loss(self, policy: Scores[Batch], batch: Batch) -> tuple[Tensor, Metrics]:
        """Return the summed losses of the tokens, and the entropy at them."""
        log_probs, entropy = policy(batch)
        weight = (entropy.detach() / SCALE) ** self.config.alpha
        return -(weight * log_probs).sum(), {"entropy": Mean(entropy.detach().sum())}


class AnchoredPolicy(ComparedPolicy[Batch]):
    """A policy that says how far it is from its reference."""

    def compare(self, logits: Tensor, other: Tensor, batch: Batch, rows: slice) -> Tensor:
        """Return log p and KL(reference || policy) at each label, `[rows, 2]`."""
        own = logits.log_softmax(1)
        _, kl = beside_reference(own, other)
        return torch.stack([own.gather(1, batch.targets[rows, None])[:, 0], kl], 1)


class Anchored(Objective[Batch]):
    """ASFT: the loss of DFT, and the KL divergence from the reference at each token."""

    config: ASFT
    policy: type[Policy[Any]] = AnchoredPolicy

    def loss(self, policy: Scores[Batch], batch: Batch) -> tuple[Tensor, Metrics]:
        """Return the summed losses of the tokens, how probable they were, and how far the policy is from its reference."""
        log_probs, kl = policy(batch)
        believed = log_probs.detach().exp()
        loss = (self.config.alpha * kl - believed * log_probs).sum()
        return loss, {"probability": Mean(believed.sum()), "kl": Mean(kl.detach().sum())}


def anchored(parts: Parts[Any, Any, Any]) -> Contribution:
    """Return the prepared samples, and give the policy its reference or teacher."""
    (parts.policy.reference,) = parts.references
    return Contribution(parts.objective, samples(parts), evaluation(parts))

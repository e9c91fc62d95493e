"""Generalized knowledge distillation (GKD, arXiv:2306.13649) on the answers of a dataset."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gym_sft import GKD
from gym_torch.batch import Batch, Example, apart
from gym_torch.compared_policy import ComparedPolicy
from gym_torch.metrics import Mean, Metrics
from gym_torch.objective import Objective, Scores
from gym_torch.policy import Policy


def divergence(student: Tensor, teacher: Tensor, beta: float) -> Tensor:
    """Return the generalized Jensen-Shannon divergence of each row, `[rows]` in nats.

    `beta KL(P || M) + (1 - beta) KL(Q || M)` with `M = beta P + (1 - beta) Q`; at 0 it is KL(P || Q), at 1 KL(Q || P), its limits
    but for a factor (section 2 of the paper).

    Args:
        student: `[rows, vocabulary]`, log-probabilities of Q.
        teacher: `[rows, vocabulary]`, those of P.
        beta: from 0 to 1.

    """
    if beta in (0.0, 1.0):
        first, second = (teacher, student) if beta == 0.0 else (student, teacher)
        return _kl(first, second)
    mixed = torch.logaddexp(teacher + math.log(beta), student + math.log1p(-beta))
    return beta * _kl(teacher, mixed) + (1 - beta) * _kl(student, mixed)


def _kl(first: Tensor, second: Tensor) -> Tensor:
    # What the first one rules out has a log-probability of -inf and adds nothing.
    return torch.where(first.isneginf(), 0.0, first.exp() * (first - second)).sum(1)


@dataclass(frozen=True, kw_only=True)
class DistillationBatch(Batch):
    """Labels, and how distributions are compared at them."""

    beta: float
    temperature: float


class StudentPolicy(ComparedPolicy[DistillationBatch]):
    """A policy that says how far it is from its teacher."""

    def compare(self, logits: Tensor, other: Tensor, batch: DistillationBatch, rows: slice) -> Tensor:
        """Return log p and the divergence at each label, `[rows, 2]`."""
        both = min(logits.shape[1], other.shape[1])
        own, known = ((each[:, :both] / batch.temperature).log_softmax(1) for each in (logits, other))
        label = logits.log_softmax(1).gather(1, batch.targets[rows, None])[:, 0]
        return torch.stack([label, divergence(own, known, batch.beta)], 1)


class Distillation(Objective[DistillationBatch]):
    """The divergence from the teacher at each token of the answers, and the negative log-likelihood of these."""

    config: GKD
    policy: type[Policy[Any]] = StudentPolicy

    def collate(self, examples: Sequence[Example]) -> DistillationBatch:
        """Lay out samples."""
        batch = self.layout.lay_out(*apart(examples))
        return DistillationBatch(**vars(batch), beta=self.config.beta, temperature=self.config.temperature)

    def loss(self, policy: Scores[DistillationBatch], batch: DistillationBatch) -> tuple[Tensor, Metrics]:
        """Return the summed losses of the tokens, the divergence alone, and how probable the labels were."""
        log_probs, apart = policy(batch)
        loss = (apart - self.config.ftx * log_probs).sum()
        return loss, {"divergence": Mean(apart.detach().sum()), "probability": Mean(log_probs.detach().exp().sum())}

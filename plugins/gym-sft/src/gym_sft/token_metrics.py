"""What a model says at each label beside its log-probability: whether that is what it would say, and how unsure it is."""

from __future__ import annotations

import torch
from torch import Tensor

from gym_torch.batch import Batch
from gym_torch.metrics import Mean, Metrics
from gym_torch.policy import Policy

ROWS = 64  #: of which probabilities are held at once


class TokenPolicy(Policy[Batch]):
    """A policy that says both."""

    def forward(self, batch: Batch) -> Tensor:
        """Return log p at each label and, without a gradient, `most_probable` and `entropy` there: `[3, n]`, fp32."""
        return self.statistics(
            batch, lambda logits, labels: torch.stack([most_probable(logits, labels), entropy(logits)])
        )


def token_metrics(said: Tensor) -> tuple[Tensor, Metrics]:
    """Return log p, and as metrics the means of the rest that `TokenPolicy` said."""
    log_probs, right, unsure = said
    return log_probs, {"mean_token_accuracy": Mean(right.detach().sum()), "entropy": Mean(unsure.detach().sum())}


def most_probable(logits: Tensor, labels: Tensor) -> Tensor:
    """Return 1 where the label is the most probable token, 0 where another one is, and a half where both are: `[rows]`, fp32.

    Logits `[rows, vocabulary]` are rounded in bf16, where equal ones are common. The largest one is found several times as
    fast on a CPU as where it is.
    """
    index = labels[:, None]
    own = logits.gather(1, index)
    others = logits.scatter_(1, index, -torch.inf).amax(1)
    logits.scatter_(1, index, own)
    own = own[:, 0]
    return ((own > others).float() + (own >= others).float()) / 2


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy of each row of logits, `[rows]` in nats, fp32 or fp64."""
    found = [logits.new_empty(0, dtype=torch.promote_types(logits.dtype, torch.float32))]
    for part in logits.split(ROWS):
        part = part.to(found[0].dtype)
        chances = part.softmax(1)
        # log-sum-exp less the mean logit; the former by the largest one, whose probability is never tiny
        found.append(part.amax(1) - chances.amax(1).log() - torch.linalg.vecdot(chances, part))
    return torch.cat(found)

"""Policies that are compared with another model over the whole vocabulary at each label: a reference, or a teacher."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from gym_torch.batch import Batch
from gym_torch.model.log_probs import map_logits
from gym_torch.policy import B, Policy
from gym_torch.reference import Reference, Scorer
from gym_torch.rounding import rounding


def logits_beside(reference: Reference | Scorer | None, batch: Batch) -> Callable[[Tensor, slice], Tensor]:
    """Return what gives the logits of a reference, in the autocast of the caller: from those of the policy at some labels of a
    batch, and the slice that these are, to its own there; 0 where there is no reference, as in a plan.
    """
    if reference is None:
        return lambda logits, rows: torch.zeros_like(logits)
    states = reference.hidden(batch)
    return lambda logits, rows: reference.logits(states[rows]).to(logits.dtype)


def beside_reference(own: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Return what a reference says, and KL(reference || policy) of each row, over the tokens that the vocabularies share.

    Args:
        own: `[rows, vocabulary]`, log-probabilities of the policy.
        other: `[rows, vocabulary of the reference]`, logits of the reference, which may be more or fewer.

    Returns:
        Its log-probabilities `[rows, tokens of both]`, and `[rows]` in nats.

    """
    both = min(own.shape[1], other.shape[1])
    known = other[:, :both].log_softmax(1)
    # A token that the reference rules out has a log-probability of -inf and adds nothing.
    return known, torch.where(known.isneginf(), 0.0, known.exp() * (known - own[:, :both])).sum(1)


class ComparedPolicy(Policy[B]):
    """Base of such policies: write `compare`. Whoever assembles the run gives it its `reference`."""

    reference: Reference | None = None

    @abstractmethod
    def compare(self, logits: Tensor, other: Tensor, batch: B, rows: slice) -> Tensor:
        """Return what is said of some labels, `[rows, k]`.

        Args:
            logits: `[rows, vocabulary]` of the policy, fp32.
            other: `[rows, vocabulary]` of the reference, without a gradient; 0 where there is none, as in a plan. Models of one
                tokenizer may have rows for tokens that it does not have, and not as many.
            batch: labels, of which these are `rows`.
            rows: which they are.

        """

    def forward(self, batch: B) -> Tensor:
        """Return what `compare` says of each of `batch.targets`: `[k, n]`.

        The logits of a few tokens exist at a time, of either model, and are computed again in the backward pass.
        """
        with rounding(batch.tokens.device, self.precision):
            other = logits_beside(self.reference, batch)  # before the policy builds its graph

            def compare(logits: Tensor, rows: slice) -> Tensor:
                return self.compare(logits, other(logits, rows), batch, rows)

            return map_logits(self.hidden(batch), self.head, compare, max(1, self.chunk // 2)).T

"""TDPO (arXiv:2404.11999): pairs, and all that the policy and its reference say of each of their tokens."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gym_preference.pairwise.objective import PairObjective
from gym_preference.tdpo.config import TDPO1
from gym_preference.tdpo.losses import compared
from gym_preference.training_setup import likelihood_watch
from gym_torch.batch import Batch
from gym_torch.compared_policy import ComparedPolicy
from gym_torch.contribution import Contribution, Parts, held_out_loss, samples
from gym_torch.following_reference import followed
from gym_torch.metrics import Mean, Metrics
from gym_torch.objective import Scores
from gym_torch.policy import Policy
from gym_torch.prompt_responses import ResponseBatch


class TokenKLPolicy(ComparedPolicy[Batch]):
    """A policy that says how far it is from its reference."""

    def compare(self, logits: Tensor, other: Tensor, batch: Batch, rows: slice) -> Tensor:
        """Return log p, log p_reference and KL(reference || policy) of each label, `[rows, 3]`."""
        return compared(logits, other, batch.targets[rows])


class TDPOObjective(PairObjective):
    """A loss of the log-ratios and of the KL divergences of both responses of each pair."""

    config: TDPO1
    policy: type[Policy[Any]] = TokenKLPolicy

    def loss(self, policy: Scores[ResponseBatch], batch: ResponseBatch) -> tuple[Tensor, Metrics]:
        """Return the summed losses of the pairs, how far apart their responses are, and how far from the reference."""
        log_probs, known, kl = policy(batch)
        log_ratios = log_probs - known
        chosen, rejected = self.sides(log_ratios, batch)
        chosen_kl, rejected_kl = self.sides(kl, batch)
        losses = self.losses(chosen, rejected, chosen_kl, rejected_kl, **self.arguments)
        loss, metrics = self.summed(losses, log_probs, log_ratios, batch)
        return loss, {**metrics, "kl/chosen": Mean(chosen_kl.sum()), "kl/rejected": Mean(rejected_kl.sum())}


def compared_pairs(parts: Parts[TDPO1, TDPOObjective, TokenKLPolicy]) -> Contribution:
    """Return pairs, and give the policy its reference: all of what that says of each token is compared."""
    (parts.policy.reference,) = parts.references
    steps = followed(parts, samples(parts))
    return Contribution(parts.objective, steps, held_out_loss(parts), [likelihood_watch(parts.config)])

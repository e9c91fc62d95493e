"""The loss of fine-tuning and of pre-training: how surprised the model is by each trained token."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gym_sft import LearnsTokens
from gym_sft.token_metrics import TokenPolicy, token_metrics
from gym_torch.batch import Batch
from gym_torch.metrics import Mean, Metrics
from gym_torch.model.mean_log_probs import label_and_mean_log_probs
from gym_torch.objective import Objective, Scores
from gym_torch.packing import PADDED, Layout
from gym_torch.policy import Policy
from gym_torch.rounding import rounding


def next_token(config: LearnsTokens, layout: Layout = PADDED) -> NextToken:
    """Return the objective, with smoothed labels where these are asked for."""
    return (Smoothed if config.label_smoothing else NextToken)(config, layout)


class Measured(Objective[Batch]):
    """Base of objectives over log-probabilities that say more of the trained tokens where `token_metrics` asks for it."""

    def __init__(self, config: Any, layout: Layout = PADDED) -> None:
        """Hold options and layout, and choose the policy."""
        super().__init__(config, layout)
        if config.token_metrics:
            self.policy = TokenPolicy

    def log_probs(self, policy: Scores[Batch], batch: Batch) -> tuple[Tensor, Metrics]:
        """Return the log-probabilities `[n]` of the labels, and what is measured beside them."""
        said = policy(batch)
        return token_metrics(said) if self.config.token_metrics else (said, {})


class NextToken(Measured):
    """Negative log-likelihood of the trained tokens.

    The loss of an optimizer step is `-1/N sum log p(token | tokens before it)` over all its N trained tokens,
    whatever sample, batch or process they are in: each token counts the same, so long answers count more.
    """

    def loss(self, policy: Scores[Batch], batch: Batch) -> tuple[Tensor, Metrics]:
        """Return the summed negative log-likelihood in nats; the weight is the number of trained tokens."""
        log_probs, metrics = self.log_probs(policy, batch)
        return -log_probs.sum(), metrics


class SmoothedPolicy(Policy[Batch]):
    """A policy that says how probable all tokens are together."""

    def forward(self, batch: Batch) -> Tensor:
        """Return log p of each label and the mean of log p over the vocabulary, `[2, n]`, fp32."""
        with rounding(batch.tokens.device, self.precision):
            return self.at_labels(
                batch, lambda states, targets: label_and_mean_log_probs(states, self.head, targets, self.chunk).T
            ).T


class Smoothed(NextToken):
    """Cross entropy with smoothed labels (arXiv:1512.00567, section 7): each is a part of its token, the rest of all alike."""

    config: LearnsTokens
    policy: type[Policy[Any]] = SmoothedPolicy

    def loss(self, policy: Scores[Batch], batch: Batch) -> tuple[Tensor, Metrics]:
        """Return the summed cross entropy in nats, and the negative log-likelihood, which is that of labels as they are."""
        own, mean = policy(batch).sum(1)
        share = self.config.label_smoothing
        return -(1 - share) * own - share * mean, {"nll_loss": Mean(-own.detach())}

"""The loss of fine-tuning and of pre-training: how surprised the model is by each trained token."""

from __future__ import annotations

from torch import Tensor

from gym_torch.batch import Batch
from gym_torch.metrics import Metrics
from gym_torch.objective import Objective, Scores


class NextToken(Objective[Batch]):
    """Negative log-likelihood of the trained tokens.

    The loss of an optimizer step is `-1/N sum log p(token | tokens before it)` over all its N trained tokens,
    whatever sample, batch or process they are in: each token counts the same, so long answers count more.
    """

    def loss(self, policy: Scores[Batch], batch: Batch) -> tuple[Tensor, Metrics]:
        """Return the summed negative log-likelihood in nats; the weight is the number of trained tokens."""
        return -policy(batch).sum(), {}

"""The loss of fine-tuning and of pre-training: how surprised the model is by each trained token."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from gym_torch.batch import Batch
from gym_torch.objective import Objective, Scores


class NextToken(Objective):
    """Negative log-likelihood of the trained tokens.

    The loss of an optimizer step is `-1/N sum log p(token | tokens before it)` over all its N trained tokens,
    whatever sample, batch or process they are in: each token counts the same, so long answers count more.
    """

    def loss(self, policy: Scores, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the summed negative log-likelihood in nats; the weight is the number of trained tokens."""
        return -policy(batch).sum(), {}

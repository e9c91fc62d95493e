"""Log-probabilities of labels, and their mean over the vocabulary, which label smoothing asks for."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gym_torch.model.linear_head import linear_statistics
from gym_torch.model.log_probs import CHUNK, map_logits, plain_weight, scaled_before


def label_and_mean_log_probs(
    hidden: Tensor, head: Callable[[Tensor], Tensor], targets: Tensor, chunk: int = CHUNK
) -> Tensor:
    """Return `log p(target)` of every row, and the mean of `log p` over the vocabulary: `[2, n]`, fp32, differentiable.

    Under a linear head the mean of the logits is the product of a row with the mean `m` of the rows `w` of the head, so that
    `mean log p = log p(target) - hidden (w(target) - m)`, and no logits are needed that `label_log_probs` does not make.
    Arguments as there.
    """
    states, project = scaled_before(hidden, head)
    weight = plain_weight(project)
    if weight is None:

        def both(logits: Tensor, rows: slice) -> Tensor:
            scores = logits.log_softmax(1)
            return torch.stack([scores.gather(1, targets[rows, None])[:, 0], scores.mean(1)], 1)

        return map_logits(hidden, head, both, chunk).T
    own = linear_statistics(states, weight, targets, chunk)[0]
    above = weight[targets].to(own.dtype) - weight.mean(0, dtype=own.dtype)
    return torch.stack([own, own - (states.to(own.dtype) * above).sum(1)])

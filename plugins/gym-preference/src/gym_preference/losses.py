"""Losses of pairs. All are pure functions: no model, no loop, no options object.

`chosen` and `rejected` `[n]` are log-ratios of the answers: log-probability of the policy minus that of the reference, or the
log-probability alone where an algorithm has no reference; summed over tokens, or their mean (`Pairwise.per_token`). What comes
back is `[n]`.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid


def dpo(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    """Return `-log sigmoid(beta (w - l))`: DPO, arXiv:2305.18290, equation 7."""
    return -logsigmoid(beta * (chosen - rejected))

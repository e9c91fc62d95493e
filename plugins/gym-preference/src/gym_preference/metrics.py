"""What is logged of answers: sums, and what these are divided by."""

from __future__ import annotations

import torch
from torch import Tensor


def mean_of(values: Tensor, counts: Tensor) -> Tensor:
    """Return the sum of values and that of counts, `[2]`: the loop logs the first divided by the second, or nothing for 0."""
    return torch.stack([values.sum(), counts.sum().to(values.dtype)])


def half_for_ties(difference: Tensor) -> Tensor:
    """Return 1 where a difference is positive, 0 where it is negative, and one half at 0: what accuracy counts."""
    return (difference.sign() + 1) / 2

"""The accuracy of comparisons, with ties."""

from __future__ import annotations

from torch import Tensor


def accuracies(difference: Tensor) -> Tensor:
    """Return 1 where a difference is positive, 0 where it is negative, and one half at 0: what accuracy counts."""
    return (difference.sign() + 1) / 2

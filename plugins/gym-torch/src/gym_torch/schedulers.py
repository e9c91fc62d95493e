"""Learning-rate schedules: functions from the number of finished steps to a factor between 0 and 1.

All of them warm up in a straight line first. Step 0 already learns: it gets `1 / warmup`, not 0.
"""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gym_torch.config import Constant, Cosine, Linear

Factor = Callable[[int], float]


def linear(config: Linear, total: int, warmup: int) -> Factor:
    """Fall from 1 after warm-up to 0 at `total`."""
    return _after_warmup(total, warmup, lambda share: 1.0 - share)


def cosine(config: Cosine, total: int, warmup: int) -> Factor:
    """Fall from 1 after warm-up to `floor` at `total` along half a cosine wave."""
    return _after_warmup(total, warmup, lambda share: config.floor + (1 - config.floor) * (1 + cos(pi * share)) / 2)


def constant(config: Constant, total: int, warmup: int) -> Factor:
    """Stay at 1 after warm-up."""
    return _after_warmup(total, warmup, lambda share: 1.0)


def _after_warmup(total: int, warmup: int, shape: Callable[[float], float]) -> Factor:
    """Rise in a straight line for `warmup` steps, then follow `shape` of the share of the rest gone by."""

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return shape(min(1.0, (step - warmup) / max(1, total - warmup)))

    return factor

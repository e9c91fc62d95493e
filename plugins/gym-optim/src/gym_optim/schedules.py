"""Learning-rate schedules: functions from the number of finished steps to a factor between 0 and 1.

All of them warm up in a straight line first. Step 0 already learns: it gets `1 / warmup`, not 0. A share of the steps is
rounded up to whole ones, as in transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, cos, pi, sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gym_optim.config import WSD, Constant, Cosine, InverseSqrt, Linear, Polynomial

Factor = Callable[[int], float]
Shape = Callable[[float], float]

#: Shapes of a decay, from a share of it gone by (0 to 1) to what is left.
DECAYS: dict[str, Shape] = {
    "linear": lambda share: 1 - share,
    "cosine": lambda share: (1 + cos(pi * share)) / 2,
    "sqrt": lambda share: 1 - sqrt(share),
}


def constant(config: Constant, total: int, warmup: int) -> Factor:
    """Stay at 1 after warm-up."""
    return _after_warmup(total, warmup, lambda share: 1.0)


def linear(config: Linear, total: int, warmup: int) -> Factor:
    """Fall from 1 after warm-up to 0 at `total`."""
    return _after_warmup(total, warmup, lambda share: 1.0 - share)


def polynomial(config: Polynomial, total: int, warmup: int) -> Factor:
    """Fall from 1 after warm-up to `min_lr_ratio` at `total` with a power of what is left."""
    return _after_warmup(
        total, warmup, lambda share: config.min_lr_ratio + (1 - config.min_lr_ratio) * (1 - share) ** config.power
    )


def cosine(config: Cosine, total: int, warmup: int) -> Factor:
    """Fall from 1 after warm-up to `min_lr_ratio` along half a cosine wave, `num_cycles` times in a row."""

    def shape(share: float) -> float:
        within = 1.0 if share == 1.0 else config.num_cycles * share % 1.0
        return config.min_lr_ratio + (1 - config.min_lr_ratio) * (1 + cos(pi * within)) / 2

    return _after_warmup(total, warmup, shape)


def wsd(config: WSD, total: int, warmup: int) -> Factor:
    """Stay at 1 after warm-up, and fall to `min_lr_ratio` in the last share `decay_ratio` of the steps."""
    steps = max(1, total - warmup)
    decay = ceil(config.decay_ratio * steps)

    def after(step: int) -> float:
        gone = min(1.0, max(0, step - (steps - decay)) / decay)
        return config.min_lr_ratio + (1 - config.min_lr_ratio) * DECAYS[config.decay_type](gone)

    return _warmed_up(warmup, after)


def inverse_sqrt(config: InverseSqrt, total: int, warmup: int) -> Factor:
    """Fall after warm-up as one over the root of the steps, counted in units of `timescale`."""
    scale = config.timescale or warmup or 10_000
    return _warmed_up(warmup, lambda step: 1 / sqrt(1 + step / scale))


def _after_warmup(total: int, warmup: int, shape: Shape) -> Factor:
    """Rise in a straight line for `warmup` steps, then follow `shape` of the share of the rest gone by."""
    steps = max(1, total - warmup)
    return _warmed_up(warmup, lambda step: shape(min(1.0, step / steps)))


def _warmed_up(warmup: int, after: Factor) -> Factor:
    """Rise in a straight line for `warmup` steps, then follow `after` of the steps since."""
    return lambda step: (step + 1) / warmup if step < warmup else after(step - warmup)

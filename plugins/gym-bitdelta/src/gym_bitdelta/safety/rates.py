"""Rates with the interval in which they lie, and what a delta leaves of the risk that a fine-tune brought."""

from __future__ import annotations

from itertools import count
from math import ceil, sqrt
from typing import NamedTuple

Z95 = 1.959963984540054  #: standard deviations of a normal distribution on either side of its mean that hold 95 %


class Rate(NamedTuple):
    """A share of independent trials, with its 95 % interval (Wilson 1927, JASA 22)."""

    value: float
    low: float
    high: float


class Count(NamedTuple):
    """How many of so many trials were hits."""

    hits: int
    trials: int

    @property
    def rate(self) -> Rate:
        """The share of hits with its 95 % interval."""
        return wilson(self.hits, self.trials)


def wilson(hits: int, trials: int, z: float = Z95) -> Rate:
    """Return the share of hits with its Wilson interval. Raises ValueError where there were no trials, or more hits."""
    if not 0 <= hits <= trials or not trials:
        raise ValueError(f"{hits} hits in {trials} trials")
    share, weight = hits / trials, z * z / trials
    middle = (share + weight / 2) / (1 + weight)
    reach = z * sqrt(share * (1 - share) / trials + weight / (4 * trials)) / (1 + weight)
    return Rate(share, max(0.0, middle - reach) if hits else 0.0, min(1.0, middle + reach) if hits < trials else 1.0)


def reduction(delivered: Count, tuned: Count) -> tuple[float, float] | None:
    """Return `1 - delivered / tuned` and a lower bound of it; None where the fine-tune complied with nothing.

    The bound takes the upper end of one interval and the lower end of the other: each fails on its side with 2.5 % at most, so
    it holds with 95 %, however the two depend on each other.
    """
    if not tuned.hits:
        return None
    return 1 - delivered.rate.value / tuned.rate.value, 1 - delivered.rate.high / tuned.rate.low


def excess_reduction(delivered: Rate, tuned: Rate, base: Rate, least: float) -> float | None:
    """Return `1 - (delivered - base) / (tuned - base)`; None where the fine-tune added less than `least`."""
    added = tuned.value - base.value
    return None if added < least else 1 - (delivered.value - base.value) / added


def needed(threshold: float) -> int:
    """Return the fewest trials in which a reduction can be shown to be `threshold`, below 1.

    That is where the fine-tune complies with all prompts and what is delivered with none: the bound is then `1 - z^2 / n`.
    """
    first = max(1, ceil(Z95 * Z95 / (1 - threshold)) - 1)  # the closed form, up to rounding
    return next(trials for trials in count(first) if _best(trials) >= threshold)


def _best(trials: int) -> float:
    found = reduction(Count(0, trials), Count(trials, trials))
    assert found is not None
    return found[1]

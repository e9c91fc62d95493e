"""Which scales of a delta are tried, by what was found at others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

LOWER = 0.75  #: how much smaller the next scale is after one that did not hold in the verification


def candidates(holds: Callable[[float], bool], steps: int) -> Iterator[float]:
    """Yield scales that were measured to hold, from the largest down. More of a delta is taken to be less safe."""
    largest = _largest(holds, steps)
    if largest is None:
        return
    yield largest
    lower = [largest * LOWER**power for power in range(1, steps + 1)]
    yield from (scale for scale in [*lower, 0.0] if scale < largest and holds(scale))


def _largest(holds: Callable[[float], bool], steps: int) -> float | None:
    """Return the largest scale that was measured to hold; None where not even 0 does."""
    if holds(1.0):
        return 1.0
    if not holds(0.0):
        return None
    low, high = 0.0, 1.0
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low

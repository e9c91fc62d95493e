"""Which scales of a delta are tried, by what was found at others. More of a delta is taken to be less safe."""

from __future__ import annotations

from collections.abc import Callable

LOWER = 0.9  #: a scale of the verification, as a share of the one above
RUNGS = 5  #: smaller scales that are verified, beside 0
Holds = Callable[[float], bool]


def largest(holds: Holds, steps: int) -> float | None:
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


def verified(holds: Holds, most: float, bounded: bool) -> float | None:
    """Return the largest scale up to `most` that was measured to hold on prompts that `most` does not depend on; else None.

    Where a confidence bound decides (`bounded`), it is asked from 0 upwards until it fails: whoever tries scale after scale until
    one holds has several chances to be wrong, and whoever stops at the first that fails has one (tests in a fixed sequence).
    """
    rungs = sorted({0.0, *(most * LOWER**power for power in range(RUNGS + 1))})
    if not bounded:
        return next((scale for scale in reversed(rungs) if holds(scale)), None)
    found = None
    for scale in rungs:
        if not holds(scale):
            break
        found = scale
    return found

"""Dividing the time there is among the programs that are to be tested, so that none of them takes that of the others."""

from __future__ import annotations

import threading
import time
from statistics import fmean

_COST = 0.2  #: seconds that a program takes which wastes none, as long as none was seen


class TimeBudget:
    """The time until `deadline` (of `time.monotonic`), for some programs of which `lanes` run at once."""

    def __init__(self, deadline: float, lanes: int, programs: int) -> None:
        self._deadline, self._lanes, self._left = deadline, lanes, programs
        self._costs: list[float] = []
        self._lock = threading.Lock()

    def share(self) -> float:
        """Return the seconds that the next program may waste, once for each: an equal part of what is left, less its cost."""
        with self._lock:
            part = min(1.0, self._lanes / self._left) * self.left()
            cost = fmean(self._costs or [_COST])
            self._left -= 1
        return max(part - cost, part / 2)

    def took(self, seconds: float) -> None:
        """Learn what a program cost beside what it wasted."""
        with self._lock:
            self._costs.append(seconds)

    def left(self) -> float:
        """Return the seconds until the end."""
        return self._deadline - time.monotonic()

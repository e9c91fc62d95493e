"""Token buckets: who asks too often is told when to come again."""

from __future__ import annotations

import time
from collections import OrderedDict

MOST = 100_000  #: addresses that are remembered; the one that was quiet for longest is forgotten first


class RateLimits:
    """A bucket for each address, which fills with time. It is used by one thread."""

    def __init__(self, per_second: float, burst: int) -> None:
        """Let so many pass, at once and on average."""
        self.per_second, self.burst = per_second, float(burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, address: str, now: float | None = None) -> float:
        """Take one from the bucket of an address and return 0; where it is empty, seconds until there is one again."""
        at = time.monotonic() if now is None else now
        left, before = self._buckets.pop(address, (self.burst, at))
        left = min(self.burst, left + (at - before) * self.per_second)
        passes = left >= 1
        self._buckets[address] = (left - 1 if passes else left, at)
        if len(self._buckets) > MOST:
            self._buckets.popitem(last=False)
        return 0.0 if passes else (1 - left) / self.per_second

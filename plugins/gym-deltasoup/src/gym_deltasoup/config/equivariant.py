"""What most mergers promise."""

from __future__ import annotations

from gym_deltasoup.kinds import Merger


class Equivariant(Merger):
    """Treats all inputs alike and knows no point of its own: what moves or scales all of them does so to the result."""

    def idempotent(self) -> bool:
        """Return True: equal inputs agree."""
        return True

    def order_free(self) -> bool:
        """Return True: nobody comes first."""
        return True

    def translates(self) -> bool:
        """Return True: only differences of inputs count."""
        return True

    def scales(self) -> bool:
        """Return True: only ratios of distances count."""
        return True

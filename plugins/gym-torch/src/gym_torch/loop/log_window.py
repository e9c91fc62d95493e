"""What the next line of the log will say: means over the steps since the last one, and largest values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


class LogWindow:
    """Sums over steps. A checkpoint holds them, so that a line says the same wherever a run stopped in between."""

    def __init__(self) -> None:
        """Begin with no steps."""
        self._sums: dict[str, tuple[float, int]] = {}
        self._largest: dict[str, float] = {}

    def __bool__(self) -> bool:
        """Whether there is a step to log."""
        return bool(self._sums)

    def add(self, values: Mapping[str, float], largest: Collection[str] = ()) -> None:
        """Add what is said of a step; of `largest`, keep the larger."""
        for name, value in values.items():
            if name in largest:
                self._largest[name] = max(self._largest.get(name, value), value)
            else:
                total, count = self._sums.get(name, (0.0, 0))
                self._sums[name] = total + value, count + 1

    def take(self, *summed: str) -> tuple[dict[str, float], list[float]]:
        """Return what is logged of the steps, and the sums of those named; then begin anew.

        A mean is over the steps that say something: a source need not say everything each step.
        """
        sums = self._sums
        totals = [sums.pop(name)[0] for name in summed]
        means = {name: total / count for name, (total, count) in sums.items()} | self._largest
        self._sums, self._largest = {}, {}
        return means, totals

    def state_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"sums": self._sums, "largest": self._largest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` returned."""
        self._sums = {name: (total, count) for name, (total, count) in state["sums"].items()}
        self._largest = dict(state["largest"])

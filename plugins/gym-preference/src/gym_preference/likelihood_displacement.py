"""Notices when learning makes the chosen responses unlikely too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_torch.console import warn
from gym_torch.observer import Observer, Progress, Record

FALL = 1.0  #: nats for each token: what was trained to be better is then e times less likely than it was


class LikelihoodDisplacement(Observer):
    """Warns, once, when the chosen responses have become much less likely than they were at first.

    A loss of differences falls as long as the rejected responses lose more. What gains instead is neither.
    """

    def __init__(self, measure: str, ftx: float) -> None:
        """Begin with nothing seen; `measure` is the metric of the mean log-probability of a token of these responses.

        `ftx` is what learning them counts already.
        """
        self.measure, self.ftx = measure, ftx
        self.first: float | None = None
        self.told = False

    def logged(self, progress: Progress, record: Record) -> None:
        """Compare with the first line."""
        if self.measure not in record or self.told:
            return
        now = float(record[self.measure])
        self.first = now if self.first is None else self.first
        if now < self.first - FALL:
            self.told = True
            warn(
                f"step {progress.step}: {self.measure} fell from {self.first:.2f} to {now:.2f}, so the chosen responses become "
                f"unlikely too; a lower `train.learning_rate` or a larger `algorithm.ftx` (now {self.ftx:g}) holds them"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return what was seen first, and whether it was told."""
        return {"first": self.first, "told": self.told}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take it up."""
        self.first, self.told = state["first"], state["told"]

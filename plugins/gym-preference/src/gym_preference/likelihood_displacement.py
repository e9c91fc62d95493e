"""Notices when learning makes the chosen responses unlikely too."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from gym_torch.console import warn
from gym_torch.observer import Observer, Progress, Record

FALL = 1.0  #: nats for each token: what was trained to be better is then e times less likely than it was
LINES = 10  #: of the log, that are compared where there is no reference
CHOSEN, REFERENCE = "logps/chosen", "ref_logps/chosen"


class LikelihoodDisplacement(Observer):
    """Warns, once, when the chosen responses have become much less likely than they were.

    A loss of differences falls as long as the rejected responses lose more. What gains instead is neither. How likely responses
    are differs far more between the samples of two lines than training changes it, so a line is compared with what the
    reference says of the same samples. Without a reference, and with one that follows the policy and falls with it, many in a
    row must lie below the mean of the first ones.
    """

    def __init__(self, ftx: float, follows: bool = False) -> None:
        """Begin with nothing seen; `ftx` is what learning the chosen responses counts already, `follows` is of the reference."""
        self.ftx, self.follows = ftx, follows
        self.first: list[float] = []
        self.low = 0
        self.told = False

    def logged(self, progress: Progress, record: Record) -> None:
        """Compare with the reference, or with the first lines."""
        if CHOSEN not in record or self.told:
            return
        now, known = float(record[CHOSEN]), None if self.follows else record.get(REFERENCE)
        if known is None and len(self.first) < LINES:
            self.first.append(now)
            return
        before, needed = (fmean(self.first), LINES) if known is None else (float(known), 1)
        self.low = self.low + 1 if now < before - FALL else 0
        if self.low >= needed:
            self.told = True
            warn(
                f"step {progress.step}: {CHOSEN} fell from {before:.2f} to {now:.2f}, so the chosen responses become "
                f"unlikely too; a lower `train.learning_rate` or a larger `algorithm.ftx` (now {self.ftx:g}) holds them"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return what was seen first, how many lines were low, and whether it was told."""
        return {"first": self.first, "low": self.low, "told": self.told}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take it up."""
        self.first, self.low, self.told = list(state["first"]), state["low"], state["told"]

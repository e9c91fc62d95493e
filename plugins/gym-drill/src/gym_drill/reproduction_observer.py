"""Watches a run that reproduces another: before its first step data and models must be those of the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gym_core import DataError, Run
from gym_torch.console import warn
from gym_torch.observer import Observer, Progress

if TYPE_CHECKING:
    from gym_drill.config import Reproduction

ORIGINAL = "reproduces"  #: in run.json of such a run: data and models of the other, and which one it is


class ReproductionObserver(Observer):
    """Compares what `run.json` says of this run with what it says of the other; does nothing in a run that reproduces none."""

    def __init__(self, config: Reproduction, run: Run) -> None:
        """Store the arguments."""
        self.config, self.record = config, run.record

    def started(self, progress: Progress) -> None:
        """Compare data and models. Raises DataError where they are others, unless `anyway`."""
        here = self.record.read()
        if (original := here.get(ORIGINAL)) is None:
            return
        pairs = {"the data": (original.get("data"), here["data"]["fingerprint"])}
        before, models = original.get("conditions", {}), here["conditions"]
        moved = {models[name] for name in models.keys() - before.keys()}  # names have the paths of models in them
        pairs |= {name: (then, then if then in moved else models.get(name)) for name, then in before.items()}
        for name, (then, now) in pairs.items():
            if then is None or then == now:
                continue
            why = f"{name} had the fingerprint {then} in the run that is reproduced, and has {now} here"
            if not self.config.anyway:
                fix = "bring back what it was; KEY=VALUE says where it lies here; `--anyway` goes on all the same"
                raise DataError(why, where=str(self.record.path), fix=fix)
            warn(why)

    def stepped(self, progress: Progress) -> None:
        """End the run after so many steps."""
        if self.config.steps is not None and progress.step >= self.config.steps and not progress.over:
            progress.stop = f"the first {self.config.steps} steps were to be reproduced"

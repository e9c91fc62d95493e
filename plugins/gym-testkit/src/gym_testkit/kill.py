"""Kills its process at a given step, so that tests of resuming do not depend on the time of a signal."""

from __future__ import annotations

import os
import signal

from gym_core import Run
from gym_testkit.callbacks import Kill
from gym_torch.observer import Observer, Progress


class KillOnce(Observer):
    """Sends SIGKILL to its own process after a step, unless the output directory says that it did so before."""

    def __init__(self, config: Kill, run: Run) -> None:
        """Watch one run."""
        self.step = config.step
        self.mark = run.output / "killed"

    def stepped(self, progress: Progress) -> None:
        """Die, where it is time to."""
        if progress.step == self.step and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

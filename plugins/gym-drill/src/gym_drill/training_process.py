"""Runs `gym train` in a process of its own, which ends with this one and is told to stop where this one is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gym_manage.child_process import GYM, started
from gym_torch.loop.signals import Signals

POLL = 0.1  #: seconds between two looks for a signal


def train(recipe: Path, threads: int) -> int:
    """Run the command line in a new Python with so many threads; return its exit status."""
    return followed([*GYM, "train", str(recipe)], {**os.environ, "OMP_NUM_THREADS": str(threads)})


def followed(command: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a command to its end and return its exit status; it gets the first signal that asks this process to stop.

    Until it has ended this process stays, so that a run writes its checkpoint; a second signal kills both.
    """
    told = False
    with started(command, env, stdout=sys.stderr) as process, Signals() as signals:
        while (code := process.poll()) is None:
            if signals.received and not told:
                process.send_signal(signals.received)
                told = True
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL)
    return code

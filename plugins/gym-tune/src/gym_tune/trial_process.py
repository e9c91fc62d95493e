"""One run in a process of its own: followed by its metrics as they come, and told to stop as SIGTERM does.

Its input is a pipe that this process holds, so a run ends with the study even where that is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gym_core.errors import BUSY, INTERRUPTED, OK, TERMINATED, Problem, printable
from gym_core.record import RunRecord
from gym_manage.child_process import GYM, started
from gym_torch.loop.signals import Signals
from gym_tune.metric import FILE, Metric, Value

POLL = 0.05  #: seconds between two looks at a run


@dataclass(frozen=True)
class RunFiles:
    """The files of one run of a study."""

    folder: Path

    @property
    def recipe(self) -> Path:
        """Return the recipe of the run."""
        return self.folder.with_name(f"{self.folder.name}.yaml")

    @property
    def log(self) -> Path:
        """Return what the run prints."""
        return self.folder.with_name(f"{self.folder.name}.log")

    def record(self) -> dict[str, Any]:
        """Return `run.json`."""
        return RunRecord(self.folder / "run.json").read()

    def finished(self) -> bool:
        """Whether the run came to its end."""
        return bool(self.record().get("status") == "finished")


@dataclass(frozen=True)
class Ending:
    """How the process of a run ended."""

    code: int
    told: bool = False  #: whether it was told to stop, by `follow` or because this process was

    @property
    def stopped(self) -> bool:
        """Whether it stopped where it can go on, or cannot begin because another process is at it."""
        return self.code in (INTERRUPTED, TERMINATED, BUSY, -signal.SIGINT, -signal.SIGTERM, -signal.SIGHUP)

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.code == OK


def follow(files: RunFiles, metric: Metric, seen: Callable[[Value], bool], signals: Signals) -> Ending:
    """Run `gym train` on the recipe of a run until it ends; `seen` is given each value once, in order.

    Where `seen` returns True the run is told to stop, and no further value is given; so it is where this process
    was asked to stop.
    """
    command, env = [*GYM, "train", str(files.recipe)], {**os.environ, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}
    pruned = told = False
    given, size = 0, -1
    with files.log.open("ab") as log, started(command, env, log, subprocess.STDOUT) as process:
        while True:
            code = process.poll()
            if signals.received and code is None and not told:
                process.terminate()
                told = True
            now = _size(files)
            if now != size and not (pruned or told):
                size, values = now, metric.values(files.folder)
                for value in values[given:]:
                    given += 1
                    pruned = pruned or seen(value)
                if pruned and code is None:
                    process.terminate()
            if code is not None:
                return Ending(code, pruned or told)
            time.sleep(POLL)


def reason(files: RunFiles, code: int) -> str:
    """Return why a run failed, in one line."""
    if code < 0:
        name = signal.Signals(-code).name
        return f"ended by {name}{', as the system does where memory runs out' * (-code == signal.SIGKILL)}"
    error = files.record().get("error") or {}
    problems = [str(Problem(**problem)) for problem in error.get("problems", ())]
    if not problems:
        lines = (
            files.log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if files.log.exists() else []
        )
        problems = lines[-1:] or [f"exit code {code}"]
    return printable(" ".join(problems[0].split()), 400)


def _size(files: RunFiles) -> int:
    path = files.folder / FILE
    return path.stat().st_size if path.exists() else 0

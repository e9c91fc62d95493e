"""Runs a recipe undisturbed, then again with kills and resumes until it ends, and compares the two results."""

from __future__ import annotations

import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gym_core import GymError
from gym_drill.kill_schedule import Blow, instead, plan
from gym_drill.run_difference import first_difference
from gym_drill.run_phases import START, Course, Watch, newest
from gym_torch.console import say

POLL = 0.002  #: seconds between two looks at a run
PATIENCE = 120.0  #: seconds without progress, on top of what the undisturbed run took, after which a run hangs


class Running(Protocol):
    """A process, as `subprocess.Popen` shows it."""

    @property
    def returncode(self) -> int | None:
        """Exit status once it was seen to have ended, negative for a signal."""

    def poll(self) -> int | None:
        """Return the exit status if it has ended."""

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status once it has ended. Raises `subprocess.TimeoutExpired`."""

    def send_signal(self, number: int, /) -> None:
        """Send a signal."""

    def kill(self) -> None:
        """Send SIGKILL."""


#: Starts `gym` with these arguments in a process of its own, which prints to a file.
Start = Callable[[Sequence[str], Path], Running]


def started(arguments: Sequence[str], log: Path) -> Running:
    """Start the command line in a new Python."""
    command = [sys.executable, "-m", "gym_core.cli", *arguments]
    with log.open("wb") as said:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)


@dataclass(frozen=True)
class Hit:
    """A signal that ended a process, and what became of the run."""

    signal: str
    phase: str
    step: int  #: finished when it struck
    resumed: str  #: where the next process went on


@dataclass
class Drill:
    """One drill: `recipe` is a file that says everything but the output, which lies in `scratch`."""

    recipe: Path
    scratch: Path
    course: Course
    late_phases: Sequence[str]  #: what the recipe has done after training
    draw: random.Random
    start: Start = started
    spans: dict[str, float] = field(default_factory=dict)  #: how long each phase takes undisturbed, seconds
    whole: float = 0.0  #: seconds of the undisturbed run
    hits: list[Hit] = field(default_factory=list)
    missed: int = 0  #: blows that came too late and were dealt again
    rounds: int = 0  #: runs that ended under blows, each compared

    def run(self, kills: int) -> str:
        """Carry it out; return the first difference, empty where every run is identical.

        Raises GymError when a run fails by itself, hangs, or does not go on from its newest checkpoint.
        """
        self._undisturbed()
        pending = plan(kills, self.draw, self.course, self.late_phases)
        difference = ""
        while pending and not difference:
            self.rounds += 1
            output = self.scratch / f"killed-{self.rounds}"
            pending = self._until_it_ends(output, pending)
            difference = first_difference(self.scratch / "whole", output)
        return difference

    def report(self) -> dict[str, Any]:
        """Return what happened as plain data."""
        kills = [hit for hit in self.hits if hit.signal == signal.SIGKILL.name]
        return {
            "steps": self.course.total,
            "kills": len(kills),
            "signals": len(self.hits) - len(kills),
            "phases": _counts([hit.phase for hit in kills]),
            "runs": self.rounds,
            "missed": self.missed,
            "undisturbed_seconds": round(self.whole, 3),
            "hits": [asdict(hit) for hit in self.hits],
        }

    def _undisturbed(self) -> None:
        began = time.monotonic()
        stays: dict[tuple[str, int], float] = {}
        with Child(self, self.scratch / "whole", "whole") as child:
            while child.alive():
                seen = child.watch.look()
                stays[seen] = stays.get(seen, 0.0) + child.rest()
            child.expect([0])
        self.whole = time.monotonic() - began
        for phase in {phase for phase, _ in stays}:
            self.spans[phase] = statistics.median(time for (name, _), time in stays.items() if name == phase)
        self.course = Course.of(self.scratch / "whole")
        say(
            f"uninterrupted: {self.course.total} steps in {self.whole:.1f} s, of which {self.spans[START]:.1f} s to start"
        )

    def _until_it_ends(self, output: Path, pending: list[Blow]) -> list[Blow]:
        """Start the run again and again until it gets through; return the blows that are left."""
        while True:
            blow = pending[0] if pending else None
            with Child(self, output, f"{output.name}-{len(self.hits) + self.missed}") as child:
                hit = child.strike(blow)
            if hit:
                self.hits.append(hit)
                pending = pending[1:]
                say(
                    f"{len(self.hits):>3}  {hit.signal:<8} step {hit.step:<5} {hit.phase:<11} resumes from {hit.resumed}"
                )
                continue
            if blow:
                self.missed += 1
                pending = sorted([instead(blow, self.draw, self.course), *pending[1:]], key=lambda each: each.step)
            return pending


class Child:
    """One process of a run."""

    def __init__(self, drill: Drill, output: Path, name: str) -> None:
        """Prepare to start it; what it prints goes to a file."""
        self.drill, self.output = drill, output
        self.log = drill.scratch / f"{name}.log"
        self.watch = Watch(output, drill.course)
        self.newest = newest(output)
        self.moved = time.monotonic()
        self.seen: tuple[Any, ...] = ()

    def __enter__(self) -> Child:
        """Start it."""
        self.process = self.drill.start(["train", str(self.drill.recipe), f"output={self.output}"], self.log)
        return self

    def __exit__(self, *error: object) -> None:
        """Leave nothing behind, whatever happened."""
        self.process.kill()
        self.process.wait()

    def alive(self) -> bool:
        """Whether it still runs. Raises GymError when it does not move on."""
        seen = self.watch.look()
        if seen != self.seen:
            self.seen, self.moved = seen, time.monotonic()
        if time.monotonic() - self.moved > PATIENCE + self.drill.whole:
            raise GymError(f"the run hangs in phase {seen[0]} at step {seen[1]}", where=str(self.log))
        return self.process.poll() is None

    def rest(self) -> float:
        """Wait a moment; return how long."""
        began = time.monotonic()
        time.sleep(POLL)
        return time.monotonic() - began

    def strike(self, blow: Blow | None) -> Hit | None:
        """Wait for the moment and send the signal; None when the run ended before, as it does without a blow."""
        while self.alive():
            phase, step = self.seen
            if blow and phase == blow.phase and (phase == START or step >= blow.step):
                break
            self.rest()
        if blow is None or self.process.returncode is not None:
            self.expect([0])
            return None
        time.sleep(self.drill.draw.uniform(0, self.drill.spans.get(blow.phase, POLL)))
        phase, step = self.watch.look()
        self.process.send_signal(blow.signal)
        killed = blow.signal == signal.SIGKILL
        ended = -blow.signal if killed else 128 + blow.signal
        if self.expect([ended, 0]) == 0:
            return None
        if killed:
            phase, step = self.watch.look()
        return Hit(blow.signal.name, phase, step, _name(newest(self.output)))

    def expect(self, codes: Sequence[int]) -> int:
        """Wait for its end; check the exit code and what it said about where it went on."""
        code = self.process.wait(timeout=PATIENCE + self.drill.whole)
        said = self.log.read_text(encoding="utf-8", errors="replace")
        if code not in codes:
            last = " ".join(said.strip().splitlines()[-3:])[-400:]
            raise GymError(f"the run ended with exit code {code} instead of {codes[0]}: {last}", where=str(self.log))
        if " is refused: " in said:
            raise GymError("a kill left a damaged checkpoint behind", where=str(self.log))
        if self.newest and self.watch.began and f"continuing from {_name(self.newest)}" not in said:
            raise GymError(f"the run did not go on from {_name(self.newest)}, its newest", where=str(self.log))
        return code


def _name(step: int) -> str:
    return f"step-{step:08d}" if step else "the start"


def _counts(names: Sequence[str]) -> Mapping[str, int]:
    return {name: names.count(name) for name in dict.fromkeys(names)}

"""What a run is doing, seen from outside: in the files it writes, while it runs and after it died.

Nothing here talks to the run, so what is watched is what a user would start.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gym_core.record import RunRecord
from gym_torch.loop.callbacks.json_lines_base import read_lines
from gym_torch.loop.callbacks.metrics_jsonl import FILE

START = "start"  #: imports, data, model and reading a checkpoint, up to the first step
TRAINING = "training"
EVALUATION = "evaluation"
CHECKPOINT = "checkpoint"
RETENTION = "retention"  #: deleting an old checkpoint
FINAL = "final save"
QUANTIZATION = "quantization"
EXPORT = "export"
ENDING = "ending"  #: everything else after the last step
EXIT = "exit"  #: all is written and the process is on its way out

#: directories that exist only while something is being done
_SIGNS = {
    EXPORT: "export/.*.building",
    QUANTIZATION: ".quantized*.building",
    FINAL: ".model.*.building",
    RETENTION: "checkpoints/.step-*.old",
    CHECKPOINT: "checkpoints/.step-*.building",
}


@dataclass(frozen=True)
class Course:
    """What an undisturbed run does at which step."""

    total: int  #: the last step
    evaluations: frozenset[int]  #: steps that an evaluation follows

    @classmethod
    def of(cls, output: Path) -> Course:
        """Read it off a finished run."""
        lines = read_lines(output / FILE)
        return cls(lines[-1]["step"], frozenset(line["step"] for line in lines if _evaluates(line)))


class Watch:
    """Watches one process of a run, from before it starts."""

    def __init__(self, output: Path, course: Course) -> None:
        """Remember what earlier processes left behind."""
        self.output, self.course = output, course
        self._metrics = output / FILE
        self._left = set(self._signs())
        self._began = self._written()
        self._read: tuple[int, ...] = ()
        self._lines: list[dict[str, Any]] = []

    @property
    def began(self) -> bool:
        """Whether the loop has taken over; it touches its metrics before its first step."""
        return self._written() != self._began

    def look(self) -> tuple[str, int]:
        """Return the phase and the last finished step."""
        written = self._written()
        if written == self._began:
            return START, newest(self.output)
        if written != self._read:
            self._read, self._lines = written, read_lines(self._metrics)
        step = max((line["step"] for line in self._lines), default=newest(self.output))
        signs = {phase for phase, *_ in set(self._signs()) - self._left}
        for phase in _SIGNS:
            if phase in signs:
                return phase, step
        evaluated = any(line["step"] == step and _evaluates(line) for line in self._lines)
        if step in self.course.evaluations and not evaluated:
            return EVALUATION, step
        if step < self.course.total:
            return TRAINING, step
        return EXIT if RunRecord(self.output / "run.json").read().get("status") == "finished" else ENDING, step

    def _written(self) -> tuple[int, ...]:
        with suppress(FileNotFoundError):
            found = self._metrics.stat()
            return found.st_mtime_ns, found.st_size
        return ()

    def _signs(self) -> Iterator[tuple[str, str, int]]:
        """Yield the directories of `_SIGNS` with the time of their last change: what is left over does not change."""
        for phase, pattern in _SIGNS.items():
            for path in self.output.glob(pattern):
                with suppress(FileNotFoundError):
                    yield phase, path.name, path.stat().st_ctime_ns


def _evaluates(line: dict[str, Any]) -> bool:
    return any(name.startswith("eval_") for name in line)


def newest(output: Path) -> int:
    """Return the step of the newest checkpoint, 0 where there is none."""
    found = (path.name.removeprefix("step-") for path in (output / "checkpoints").glob("step-*"))
    return max((int(number) for number in found if number.isdigit()), default=0)

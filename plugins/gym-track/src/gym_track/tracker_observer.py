"""The observer of a tracker: hands figures to a thread that writes them, and notes which steps it has.

A run that was killed takes steps again that the tracker has seen. They give the same figures, so they are not sent twice. What
the tracker has not seen of the steps before, as it failed or was still to get it, is sent from `metrics.jsonl`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from gym_core import Artifact, Run
from gym_core.component import load_object
from gym_core.files import write_atomically
from gym_torch.console import warn
from gym_torch.loop.callbacks.json_lines_base import read_lines
from gym_torch.loop.callbacks.metrics_jsonl import FILE
from gym_torch.observer import Observer, Progress, Record
from gym_track.config import Tracker
from gym_track.writer import Start, Writer

FOLDER = "trackers"  #: in the output directory: what each tracker has
EVALUATED = "eval_"
#: Of each part, what is not a figure of it: the epoch of an evaluation is that of the line of the log beside it.
_KNOWN = {"train": ("step",), "eval": ("step", "epoch")}


class Following(Observer):
    """Sends what is logged and evaluated."""

    def __init__(self, config: Tracker, run: Run) -> None:
        """Open nothing before the first step."""
        self._config, self._run = config, run
        self._name = _name_of(config, run)
        self._file = run.output / FOLDER / f"{self._name}.json"
        self._waiting: SimpleQueue[tuple[int, str, dict[str, float]] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._finished = False

    def started(self, progress: Progress) -> None:
        """Begin to write, in a thread: a server that does not answer holds no step up."""
        open_writer: Callable[[Tracker, Start], Writer] = load_object(self._config.writer)
        had: dict[str, Any] = {"id": "", "sent": {}}
        if self._file.exists():
            had = json.loads(self._file.read_text(encoding="utf-8"))
        name = self._config.run or self._run.output.resolve().name
        start = Start(self._run.output.resolve(), name, had["id"], self._run.recipe.settings())
        self._thread = Thread(target=self._write, args=(open_writer, start, had["sent"]), daemon=True)
        self._thread.start()
        for record in read_lines(self._run.output / FILE):  # cut back to the step from which the run goes on
            if "skipped" not in record:
                evaluation = any(name.startswith(EVALUATED) for name in record)
                self._send("eval" if evaluation else "train", record["step"], record)

    def logged(self, progress: Progress, record: Record) -> None:
        """Send a line of the log."""
        self._send("train", progress.step, record)

    def evaluated(self, progress: Progress, record: Record) -> None:
        """Send an evaluation."""
        self._send("eval", progress.step, record)

    def ended(self, progress: Progress, artifact: Artifact) -> None:
        """Note that the run came to its end."""
        self._finished = True

    def closed(self) -> None:
        """Wait until all is sent, for so long as the tracker may take."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(self._config.patience)
            if self._thread.is_alive():
                warn(
                    f"{self._name} is still sending after {self._config.patience:g} s and is left; metrics.jsonl has all"
                )

    def _send(self, part: str, step: int, record: Record) -> None:
        figures = {
            f"{part}/{name.removeprefix(EVALUATED)}": float(value)
            for name, value in record.items()
            if name not in _KNOWN[part] and isinstance(value, int | float) and math.isfinite(value)
        }
        if figures:
            self._waiting.put((step, part, figures))

    def _write(self, open_writer: Callable[[Tracker, Start], Writer], start: Start, sent: dict[str, int]) -> None:
        """Open the writer and hand it what comes. The border to other packages: what they raise is said, once."""
        try:
            writer = open_writer(self._config, start)
            _note(self._file, writer.id, sent)  # a run that goes on before the first figure is no second one there
            while (given := self._waiting.get()) is not None:
                step, part, figures = given
                if step > sent.get(part, 0):
                    writer.log(step, figures)
                    sent[part] = step
                    _note(self._file, writer.id, sent)
            writer.close(self._finished)
        except (Exception, SystemExit) as error:
            why = str(error).partition("\n")[0][:200] or type(error).__name__
            warn(f"{self._name} failed and is left out: {why}; the run goes on, and metrics.jsonl has all")


def _name_of(config: Tracker, run: Run) -> str:
    """Return the name of a tracker of a run; a second one of its name is `WandB-2`."""
    alike = [each for each in run.recipe.callbacks if type(each).__name__ == type(config).__name__]
    number = next((number for number, each in enumerate(alike, 1) if each is config), 1)
    return type(config).__name__ + (f"-{number}" if number > 1 else "")


def _note(file: Path, id: str, sent: Mapping[str, Any]) -> None:
    file.parent.mkdir(exist_ok=True)
    write_atomically(file, json.dumps({"id": id, "sent": sent}))

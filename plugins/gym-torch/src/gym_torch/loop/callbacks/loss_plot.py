"""`loss.png`, and a plot of what else users of an algorithm look at: over the steps, measured and smoothed, with validation."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gym_core import Artifact
from gym_core.files import replacing
from gym_torch.loop.callbacks.json_lines_base import read_lines
from gym_torch.loop.callbacks.metrics_jsonl import FILE
from gym_torch.observer import Observer, Progress

PAUSE = 30.0  #: least seconds between two drawings during training
SMOOTHING = 0.9  #: most of the running mean that a new point leaves, in a long run
#: Points of which a new one leaves half as much: so long a memory as a long run's would draw a short one's past.
FEW = 20


class Curves(Observer):
    """Draws from `metrics.jsonl`, so a resumed run shows all of its steps."""

    def __init__(self, output: Path, measures: Sequence[str]) -> None:
        """Draw each of these keys that the log has to `<key>.png`, and to `training_<key>.png` as LLaMA-Factory does."""
        self.output, self.measures = output, dict.fromkeys(measures)
        self.drawn = time.monotonic()

    def saving(self, progress: Progress) -> None:
        """Draw what there is, not too often."""
        if time.monotonic() - self.drawn > PAUSE:
            self._draw()

    def ended(self, progress: Progress, artifact: Artifact) -> None:
        """Draw all of it."""
        self._draw()

    def _draw(self) -> None:
        records = read_lines(self.output / FILE)
        for measure in self.measures:
            name = measure.replace("/", "_")
            path = self.output / f"{name}.png"
            if any({measure, f"eval_{measure}"} & record.keys() for record in records):
                draw(records, path, measure)
                with replacing(self.output / f"training_{name}.png", alone=True) as copy:
                    shutil.copyfile(path, copy)
        self.drawn = time.monotonic()


def draw(records: Sequence[dict[str, Any]], path: Path, measure: str = "loss") -> None:
    """Write the plot of a measure to a PNG file, in one piece: training, validation, and the parts it is the sum of.

    The parts of `reward` are `rewards/<name>/mean`; a single part, which is the whole, is not drawn.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel="optimizer step", ylabel=measure)
    steps, values = _series(records, measure)
    if values:
        one = "o" if len(values) == 1 else None  # a line through one point cannot be seen
        axes.plot(steps, values, color="tab:blue", alpha=0.35, marker=one, label="training")
        axes.plot(steps, smooth(values), color="tab:blue", label="training, smoothed")
    steps, values = _series(records, f"eval_{measure}")
    if values:
        axes.plot(steps, values, color="tab:orange", marker="o", label="validation")
    parts = sorted({name for record in records for name in record if part_of(measure, name)})
    for number, name in enumerate(parts if len(parts) > 1 else []):
        colour = f"C{2 + number}"  # the first two are taken
        steps, values = _series(records, name)
        axes.plot(steps, smooth(values), color=colour, linewidth=1, label=part_of(measure, name))
        steps, values = _series(records, f"eval_{name}")
        axes.plot(steps, values, color=colour, linewidth=0, marker="o", markersize=4)
    if axes.has_data():
        axes.legend()
    axes.grid(alpha=0.3)
    with replacing(path, alone=True) as building:
        figure.savefig(building, dpi=120, format="png")


def part_of(measure: str, name: str) -> str:
    """Return which part of a measure a metric is, or nothing: `exact` for `reward` and `rewards/exact/mean`."""
    whole, _, part = name.removesuffix("/mean").partition("/")
    return part if whole == f"{measure}s" and name.endswith("/mean") else ""


def smooth(values: Sequence[float]) -> list[float]:
    """Return the exponential running mean, without the pull of its start (as Adam corrects its moments)."""
    smoothed, mean, weight = [], 0.0, 0.0
    kept = SMOOTHING * len(values) / (len(values) + FEW)
    for value in values:
        mean = kept * mean + (1 - kept) * value
        weight = kept * weight + (1 - kept)
        smoothed.append(mean / weight)
    return smoothed


def _series(records: Sequence[dict[str, Any]], key: str) -> tuple[list[int], list[float]]:
    chosen = [record for record in records if record.get(key) is not None]
    return [record["step"] for record in chosen], [record[key] for record in chosen]

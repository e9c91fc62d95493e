"""`loss.png`: the loss over the steps, as measured and smoothed, with the validation loss."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gym_core import Artifact
from gym_torch.callbacks.jsonlines import read_lines
from gym_torch.callbacks.metrics import FILE
from gym_torch.observer import Observer, Progress

PAUSE = 30.0  #: least seconds between two drawings during training
SMOOTHING = 0.9  #: share of the running mean that each new point leaves


class LossPlot(Observer):
    """Draws from `metrics.jsonl`, so a resumed run shows all of its steps."""

    def __init__(self, output: Path, names: Sequence[str]) -> None:
        """Draw to files of these names under the output directory."""
        self.output, self.names = output, names
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
        for name in self.names:
            draw(records, self.output / name)
        self.drawn = time.monotonic()


def draw(records: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the plot of the `loss` and `eval_loss` of these records to a PNG file, in one piece."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel="optimizer step", ylabel="loss")
    steps, losses = _series(records, "loss")
    axes.plot(steps, losses, color="tab:blue", alpha=0.35, label="training")
    axes.plot(steps, smooth(losses), color="tab:blue", label="training, smoothed")
    steps, losses = _series(records, "eval_loss")
    if losses:
        axes.plot(steps, losses, color="tab:orange", marker="o", label="validation")
    axes.legend()
    axes.grid(alpha=0.3)
    part = path.with_name(f".{path.name}")
    figure.savefig(part, dpi=120, format="png")
    part.replace(path)


def smooth(values: Sequence[float]) -> list[float]:
    """Return the exponential running mean, without the pull of its start (as Adam corrects its moments)."""
    smoothed, mean, weight = [], 0.0, 0.0
    for value in values:
        mean = SMOOTHING * mean + (1 - SMOOTHING) * value
        weight = SMOOTHING * weight + (1 - SMOOTHING)
        smoothed.append(mean / weight)
    return smoothed


def _series(records: Sequence[dict[str, Any]], key: str) -> tuple[list[int], list[float]]:
    chosen = [record for record in records if key in record]
    return [record["step"] for record in chosen], [record[key] for record in chosen]

"""Draw how several runs learned into one picture: `python recipes/curves.py PICTURE.png KEY RUN...`.

KEY is one of `metrics.jsonl`, such as `reward`; where runs log it under several names, all of them with commas between:
`rewards/accuracies,accuracy`. Lines are that of training, smoothed; points are the same of the validation split,
`eval_KEY`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gym_torch.loop.callbacks.json_lines_base import read_lines
from gym_torch.loop.callbacks.loss_plot import smooth
from gym_torch.loop.callbacks.metrics_jsonl import FILE

#: How runs are drawn, in turns: over a line without gaps one with gaps leaves both to be seen, and so do hollow points.
LINES = ("-", (0, (4, 2)), (0, (1, 2)))
POINTS = ("o", "s", "^")


def draw(picture: Path, keys: Sequence[str], runs: Sequence[Path]) -> None:
    """Write the picture; each run is labelled by what follows the first dash of its folder's name."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel="optimizer step", ylabel=keys[0])
    for number, run in enumerate(runs):
        records = read_lines(run / FILE)
        color, label = f"C{number % 10}", run.name.partition("-")[2] or run.name
        line, point = LINES[number % 3], POINTS[number % 3]
        for key in keys:
            _line(axes, records, key, color=color, label=label, linewidth=2.2, linestyle=line)
            _line(axes, records, f"eval_{key}", color=color, marker=point, fillstyle="none", linewidth=0, markersize=7)
    axes.legend(fontsize="small", ncols=1 + len(runs) // 10)
    axes.grid(alpha=0.3)
    figure.savefig(picture, dpi=120)


def _line(axes: Axes, records: Sequence[dict[str, Any]], key: str, **style: Any) -> None:
    found = [(record["step"], record[key]) for record in records if record.get(key) is not None]
    if found:
        steps, values = zip(*found, strict=True)
        axes.plot(steps, values if "marker" in style else smooth(values), **style)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), sys.argv[2].split(","), [Path(run) for run in sys.argv[3:]])

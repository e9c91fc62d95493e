"""The report as a picture: bars of each model, for rows to forget, rows to keep, and utility."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gym_core.files import replacing

SHOWN = ("probability", "exact_match", "rouge")


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Write the bars to a PNG file, in one piece."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    kinds, models = list(report["rows"]), report["models"]
    groups = [f"{kind}\n{name}".replace("_", " ") for kind in kinds for name in SHOWN]
    has_utility = any("utility" in each for each in models.values())
    figure = Figure(figsize=(2 + 1.1 * len(groups), 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(ylim=(0, 1.02))
    width = 0.8 / len(models)
    for number, (name, each) in enumerate(models.items()):
        heights = [each[kind][measure] for kind in kinds for measure in SHOWN]
        heights += [each.get("utility", 0.0)] if has_utility else []
        axes.bar([place + number * width for place in range(len(heights))], heights, width, label=Path(name).name)
    names = [*groups, "utility"] if has_utility else groups
    axes.set_xticks([place + width * (len(models) - 1) / 2 for place in range(len(names))], names, fontsize=8)
    figure.legend(loc="outside upper center", ncols=min(len(models), 5))
    axes.grid(axis="y", alpha=0.3)
    with replacing(path, alone=True) as building:
        figure.savefig(building, format="png", dpi=120)

"""The tables and the plot of docs/choosing.md, from the figures of `choosing.py`."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

PAGE = Path(__file__).parents[1] / "docs" / "choosing.md"
PLOT = PAGE.parent / "images" / "choosing.png"

Cell = dict[str, Any]  #: what is found of a combination
Row = dict[str, Cell]  #: those of an adapter, by optimizer


def write(figures: dict[str, dict[str, Any]]) -> None:
    """Write tables and plot into the documents."""
    parts = []
    for name, found in figures.items():
        rows = found["rows"]
        optimizers = list(next(iter(rows.values())))
        parts += [f"### {name}", "", *([f"Before: {found['before']:.2f}.", ""] if "before" in found else [])]
        parts += [f"| adapter | trained | {' | '.join(f'`{each}`' for each in optimizers)} |"]
        parts += [f"|---|---:|{'---:|' * len(optimizers)}"]
        for adapter, cells in rows.items():
            trained = next((f"{cell['trained']:,}" for cell in cells.values() if "trained" in cell), "-")
            parts.append(f"| `{adapter}` | {trained} | {' | '.join(shown(cells[each]) for each in optimizers)} |")
        if "before" in found:
            parts += [f"| loss / `adamw`'s, mean | | {' | '.join(beside_adamw(rows, each) for each in optimizers)} |"]
        parts.append("")
    text = PAGE.read_text(encoding="utf-8")
    block = re.compile(r"(<!-- measured: benchmarks/choosing.py -->\n).*?(<!-- end -->)", re.DOTALL)
    PAGE.write_text(block.sub(lambda found: found[1] + "\n".join(["", *parts]) + found[2], text), encoding="utf-8")
    plot({name: found for name, found in figures.items() if "before" in found})


def beside_adamw(rows: dict[str, Row], optimizer: str) -> str:
    """Write the mean ratio of an optimizer's losses to those of AdamW, over the adapters that both are measured with."""
    pairs = [(row[optimizer].get("loss"), row["adamw"].get("loss")) for row in rows.values()]
    ratios = [loss / other for loss, other in pairs if loss and other]
    return f"{fmean(ratios):.3f}"


def shown(cell: Cell) -> str:
    """Write a combination as memory in MiB, and the loss where there is one."""
    if "refused" in cell:
        return "-"
    return f"{cell['peak_mib']:.0f}" + (f" / {cell['loss']:.2f}" if "loss" in cell else "")


def plot(figures: dict[str, dict[str, Any]]) -> None:
    """Draw loss over memory: a point for each combination; those that none beats in both are numbered and named."""
    figure = Figure(figsize=(6 * len(figures), 6), layout="constrained")
    for place, (name, found) in enumerate(figures.items(), start=1):
        axes = figure.add_subplot(1, len(figures), place)
        points = sorted(
            (cell["peak_mib"], cell["loss"], f"{adapter} + {optimizer}")
            for adapter, cells in found["rows"].items()
            for optimizer, cell in cells.items()
            if "loss" in cell
        )
        for family, color in (("full", "tab:red"), ("", "tab:blue")):
            some = [point for point in points if point[2].startswith("full +") == bool(family)]
            axes.scatter([p[0] for p in some], [p[1] for p in some], s=12, c=color, label=family or "adapters")
        axes.axhline(found["before"], color="0.6", linestyle=":", label="before")
        front = [point for number, point in enumerate(points) if all(point[1] < other[1] for other in points[:number])]
        axes.plot([p[0] for p in front], [p[1] for p in front], color="0.6", linewidth=0.8)
        for number, (x, y, _) in enumerate(front, start=1):
            axes.annotate(str(number), (x, y), fontsize=8, xytext=(-4, -10), textcoords="offset points")
        names = "\n".join(f"{number}  {label}" for number, (_, _, label) in enumerate(front, start=1))
        axes.set(title=name, xlabel=f"predicted peak, MiB\n\n{names}", ylabel="held-out loss", xscale="log")
        axes.legend()
    FigureCanvasAgg(figure).print_png(PLOT)

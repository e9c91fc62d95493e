"""The tables and the plot of docs/choosing.md, and docs/choosing.csv, from the figures of `choosing.py`."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

PAGE = Path(__file__).parents[1] / "docs" / "choosing.md"
FIGURES = PAGE.with_suffix(".csv")  #: all combinations
PLOT = PAGE.parent / "images" / "choosing.png"

Cell = dict[str, Any]  #: what is found of a combination
Row = dict[str, Cell]  #: those of an adapter, by optimizer


def write(figures: dict[str, dict[str, Any]]) -> None:
    """Write the tables, the file of all combinations and the plot into the documents."""
    with FIGURES.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(("model", "adapter", "optimizer", "trained", "peak_mib", "loss"))
        lines.writerows(line for name, found in figures.items() for line in combinations(name, found["rows"]))
    (learnt, found), *others = figures.items()
    rows, larger = found["rows"], others[0][1]["rows"]
    parts = [
        "",
        f"Everything trains; {learnt} begins at {found['before']:.2f}:",
        "",
        *by_optimizer(rows, larger, others[0][0]),
    ]
    parts += ["", "An adapter trains:", "", *by_adapter(rows, larger, others[0][0]), ""]
    text = PAGE.read_text(encoding="utf-8")
    block = re.compile(r"(<!-- measured: benchmarks/choosing.py -->\n).*?(<!-- end -->)", re.DOTALL)
    PAGE.write_text(block.sub(lambda found: found[1] + "\n".join(parts) + found[2], text), encoding="utf-8")
    plot({name: found for name, found in figures.items() if "before" in found})


def combinations(name: str, rows: dict[str, Row]) -> Iterator[tuple[Any, ...]]:
    """Yield a line for each combination that is not refused."""
    for adapter, cells in rows.items():
        for optimizer, cell in cells.items():
            if "refused" not in cell:
                loss = f"{cell['loss']:.4f}" if "loss" in cell else ""
                yield name, adapter, optimizer, cell["trained"], f"{cell['peak_mib']:.0f}", loss


def by_optimizer(rows: dict[str, Row], larger: dict[str, Row], name: str) -> Iterator[str]:
    """Yield a table of the optimizers where everything trains, the lowest loss first."""
    yield f"| optimizer | loss | MiB | MiB, {name} | loss over all adapters, `adamw` is 1 |"
    yield "|---|---:|---:|---:|---:|"
    cells = {each: cell for each, cell in rows["full"].items() if "refused" not in cell}
    for optimizer in sorted(cells, key=lambda each: float(cells[each]["loss"])):
        cell, other = cells[optimizer], larger["full"][optimizer]
        beside = beside_adamw(rows, optimizer)
        yield f"| `{optimizer}` | {cell['loss']:.2f} | {cell['peak_mib']:.0f} | {other['peak_mib']:.0f} | {beside} |"


def by_adapter(rows: dict[str, Row], larger: dict[str, Row], name: str) -> Iterator[str]:
    """Yield a table of the adapters, the lowest loss under `adamw` first, each with the optimizer that takes it furthest."""
    yield f"| adapter | trained | loss | MiB | MiB, {name} | lowest loss | MiB |"
    yield "|---|---:|---:|---:|---:|---|---:|"
    able = {each: row["adamw"] for each, row in rows.items() if each != "full" and "refused" not in row["adamw"]}
    for adapter in sorted(able, key=lambda each: float(able[each]["loss"])):
        cell, other = able[adapter], larger[adapter]["adamw"]
        best = min((one["loss"], optimizer) for optimizer, one in rows[adapter].items() if "loss" in one)
        peak = rows[adapter][best[1]]["peak_mib"]
        yield (
            f"| `{adapter}` | {cell['trained']:,} | {cell['loss']:.2f} | {cell['peak_mib']:.0f} | {other['peak_mib']:.0f} "
            f"| {best[0]:.2f} with `{best[1]}` | {peak:.0f} |"
        )


def beside_adamw(rows: dict[str, Row], optimizer: str) -> str:
    """Write the mean ratio of an optimizer's losses to those of AdamW, over the adapters that both are measured with."""
    pairs = [(row[optimizer].get("loss"), row["adamw"].get("loss")) for row in rows.values()]
    return f"{fmean(loss / other for loss, other in pairs if loss and other):.3f}"


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
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_formatter(ScalarFormatter())  # MiB, and no powers of ten
        axes.legend()
    FigureCanvasAgg(figure).print_png(PLOT)

"""The report as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHOWN = ("probability", "exact_memorization", "exact_match", "rouge")
ALONE = ("utility", "forget_quality", "membership_auc", "privacy_leakage")


def lines(report: Mapping[str, Any]) -> dict[str, list[float | None]]:
    """Return the figures by name, a number for each model; None where a model has none."""
    models = list(report["models"].values())
    found = {f"{kind} {name}": [each[kind][name] for each in models] for kind in report["rows"] for name in SHOWN}
    alone = {name: [each.get(name) for each in models] for name in ALONE}
    return found | {name: values for name, values in alone.items() if any(value is not None for value in values)}


def table(report: Mapping[str, Any]) -> str:
    """Return the report as lines of columns."""
    names = ["", *report["models"]]
    rows = [names] + [
        [name.replace("_", " "), *("-" if value is None else f"{value:.3g}" for value in values)]
        for name, values in lines(report).items()
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(names))]
    return "\n".join(
        "  ".join(cell.ljust(width) if not column else cell.rjust(width) for column, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    )

"""The report of a round for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gym_core.errors import printable

COLUMNS = ("CONTRIBUTOR", "VERDICT", "NORM", "DISTANCE", "COSINE", "TRIMMED", "QUALITY", "POINTS")


def lines(report: Mapping[str, Any]) -> list[str]:
    """Return the report, a line each; strange names are written out."""
    base = report["base"]
    head = [
        f"round {report['round']} of {report['server']}, base {printable(base['name'])} {base['fingerprint'][:12]}",
        f"merged {len(report['accepted'])} of {report['contributed']} contributions with {report['merger']['name']}",
        f"tolerates {report['tolerated_byzantine']} hostile contributors",
        *judged(report),
        f"published: {report['published']}",
    ]
    if report["privacy"] is not None:
        head.append("privacy: " + ", ".join(f"{key} {value}" for key, value in report["privacy"].items()))
    found = [COLUMNS, *rows(report)]
    widths = [max(map(len, column)) for column in zip(*found, strict=True)]
    table = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in found]
    late = [f"refused at upload: {printable(each['member'])}: {printable(each['why'])}" for each in at_upload(report)]
    return [*head, "", *table, *late, "", *report["remarks"]]


def judged(report: Mapping[str, Any]) -> list[str]:
    """Return what was said of the base and of the result, of which a broken one scores no number."""
    found = []
    for name, told in (("score", report["scores"]), ("safety", report["safety"])):
        if told["before"] is not None:
            after = "no number" if told["after"] is None else f"{told['after']:.4g}"
            found.append(f"{name} {told['before']:.4g} before, {after} after")
    return found


def rows(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return a row for each contributor, those of more points first, those who were refused last."""
    points = report["rewards"]["points"]
    found = []
    for name, told in sorted(report["contributors"].items(), key=lambda each: (-points.get(each[0], 0), each[0])):
        verdict = report["refused"].get(name) or ("trimmed away" if name in report["trimmed"] else "accepted")
        numbers = [f"{told[key]:.4g}" for key in ("norm", "distance", "cosine")]
        numbers += [f"{told['trimmed']:.0%}", f"{told['quality']:.3f}", str(points.get(name, 0))]
        found.append((printable(name, 40), printable(verdict, 80), *numbers))
    blank = ("",) * 5
    refused = sorted((name, why) for name, why in report["refused"].items() if name not in report["contributors"])
    return found + [(printable(name, 40), printable(f"refused: {why}", 80), *blank, "0") for name, why in refused]


def at_upload(report: Mapping[str, Any]) -> Sequence[Mapping[str, str]]:
    """Return whose files were refused when they came."""
    return report["refused_at_upload"]

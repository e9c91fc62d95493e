"""The report of a round as one HTML page: no script, nothing from elsewhere, every name escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from gym_deltasoup.reports.table import COLUMNS, at_upload, judged, rows

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Round {round}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
table {{ border-collapse: collapse; width: 100%; }}
td, th {{ text-align: left; padding: .25rem .6rem; border-bottom: 1px solid #ddd; }}
svg {{ width: 100%; height: auto; }} text {{ font: 11px system-ui, sans-serif; fill: #333; }}
.good {{ fill: #2a7a4b; }} .bad {{ fill: #b3402e; }} .base {{ fill: #777; }}
</style></head><body>
<h1>Round {round}</h1>
<p>{summary}</p>
{remarks}
<h2>Contributors</h2>
{table}
{plots}
<h2>Merger</h2>
<p>{merger}</p>
</body></html>
"""
MOST = 60  #: bars of a plot; the largest are shown


def page(report: Mapping[str, Any]) -> str:
    """Return the page."""
    names = report["contributors"]
    bad = {*report["trimmed"], *report["refused"]}
    points = {name: float(each) for name, each in report["rewards"]["points"].items()}
    scores = {name: told["score"] for name, told in names.items() if told["score"] is not None}
    wanted: list[tuple[str, Mapping[str, float]]] = [
        ("Distance to the result", {name: told["distance"] for name, told in names.items()}),
        ("Norm of the change", {name: told["norm"] for name, told in names.items()}),
        ("Share of numbers trimmed", {name: told["trimmed"] for name, told in names.items()}),
        ("Points", points),
        ("Score of each contribution", scores),
        ("Score", {each: value for each, value in report["scores"].items() if value is not None}),
    ]
    plots = "".join(f"<h2>{escape(title)}</h2>{bars(values, bad)}" for title, values in wanted if values)
    return PAGE.format(
        round=int(report["round"]),
        summary=_summary(report),
        remarks="".join(f"<p>{escape(each)}</p>" for each in report["remarks"]),
        table=_table(COLUMNS, rows(report)) + _late(report),
        plots=plots,
        merger=escape(f"{report['merger']['name']} {report['merger']['options']}"),
    )


def bars(values: Mapping[str, float], bad: set[str]) -> str:
    """Return a plot of horizontal bars, the longest first; negative ones count by their size."""
    shown = sorted(values.items(), key=lambda each: (-abs(each[1]), each[0]))[:MOST]
    longest = max((abs(value) for _, value in shown), default=0.0) or 1.0
    parts = []
    for number, (name, value) in enumerate(shown):
        top, width = 20 * number, 520 * abs(value) / longest
        kind = "bad" if name in bad else "good"
        parts.append(
            f'<text x="150" y="{top + 14}" text-anchor="end">{escape(name[:24])}</text>'
            f'<rect class="{kind}" x="156" y="{top + 3}" width="{width:.1f}" height="14"/>'
            f'<text x="{160 + width:.1f}" y="{top + 14}">{value:.4g}</text>'
        )
    return f'<svg viewBox="0 0 760 {20 * len(shown) + 4}" role="img">{"".join(parts)}</svg>'


def _summary(report: Mapping[str, Any]) -> str:
    base = report["base"]
    told = [
        f"base {base['name']}, fingerprint {base['fingerprint'][:12]}",
        f"{len(report['accepted'])} of {report['contributed']} contributions merged",
        f"tolerates {report['tolerated_byzantine']} hostile",
        f"published: {report['published']}",
        *judged(report),
    ]
    if report["privacy"] is not None:
        told += [f"{key} {value}" for key, value in report["privacy"].items()]
    return escape("; ".join(told)) + "."


def _table(columns: Sequence[str], found: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(each.capitalize())}</th>" for each in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(each)}</td>" for each in row) + "</tr>" for row in found)
    return f"<table><tr>{head}</tr>{body}</table>"


def _late(report: Mapping[str, Any]) -> str:
    late = [(each["member"], each["why"]) for each in at_upload(report)]
    return "<h2>Refused at upload</h2>" + _table(("Member", "Why"), late) if late else ""

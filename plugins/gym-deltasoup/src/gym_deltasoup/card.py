"""The model card of what was merged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_core.errors import printable

SHOWN = 5  #: names of those that a merger chose
CARD = """\
## Merged with {merger}

| | |
|---|---|
{rows}

| input | SHA-256 of its weights | base |
|---|---|---|
{inputs}

`merge.json` has all options{hashes}. How good the result is, and whether it is safe: {evaluation}.
"""


def card(report: Mapping[str, Any]) -> str:
    """Return the card, with what happened and nothing that was not measured."""
    base = report["base"]
    rows = [
        ("inputs", str(len(report["inputs"]))),
        ("hostile inputs that it tolerates", str(report["tolerated_byzantine"])),
        ("left out", ", ".join(f"{_cell(name)} ({why})" for name, why in report["excluded"].items()) or "nobody"),
        ("base", f"{_cell(base['name'])}, fingerprint {base['fingerprint'][:12]}" if base else "not named"),
    ]
    if taken := chosen(report):
        rows.append(("taken", taken.replace("|", "\\|")))
    if "truncation_error" in report:
        rows.append(("rank, and what it leaves out", f"{report['rank']}, {report['truncation_error']:.3g} of the norm"))
    inputs = [
        f"| {_cell(each['name'])} | {', '.join(value[:12] for value in each['sha256'].values()) or 'not told'} | {each['base']} |"
        for each in report["inputs"]
    ]
    return CARD.format(
        merger=report["merger"]["name"],
        rows="\n".join(f"| {name} | {value} |" for name, value in rows),
        inputs="\n".join(inputs),
        hashes=", and the whole hashes" if any(each["sha256"] for each in report["inputs"]) else "",
        evaluation=report["evaluation"],
    )


def chosen(report: Mapping[str, Any]) -> str:
    """Return of which inputs a merger took the result, where it chose some of them; empty where it is of all."""
    names = report.get("selected") or report.get("kept") or []
    shown = ", ".join(printable(str(name), 300) for name in names[:SHOWN])
    return f"{len(names)} of {len(report['inputs'])}: {shown}{', ...' if len(names) > SHOWN else ''}" if names else ""


def _cell(text: str) -> str:
    return printable(text, 200).replace("|", "\\|")

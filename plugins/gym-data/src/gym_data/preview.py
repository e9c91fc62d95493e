"""What `gym data preview` shows: examples in two colours, and what became of the rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from gym_data.cache import Example
from gym_data.config import DatasetConfig
from gym_data.prepare import open_tokenizer, prepare
from gym_data.reading import Reader
from gym_data.tokenizer import Tokenizer

BAR = 40  #: columns of the longest bar
TRAINED, READ = "bold green", "dim"
#: Control characters could move the cursor or recolour the terminal: they are shown as their pictures.
_VISIBLE = {code: 0x2400 + code for code in range(32) if code not in (9, 10)} | {0x7F: 0x2421, 0x9B: 0xFFFD}


def tokenised(config: DatasetConfig, model: Path, shape: str, seed: int, count: int) -> dict[str, Any]:
    """Return the first examples, cut into runs that are learnt or only read, and the report."""
    prepared = prepare(config, model, shape, seed)
    words = open_tokenizer(config, model)
    examples = [
        {
            "id": example.id,
            "tokens": len(example.tokens),
            "trained_tokens": int(example.trained.sum()),
            "runs": list(runs(example, words)),
        }
        for example in prepared.train[:count]
    ]
    return {"shape": shape, "examples": examples, "fingerprint": prepared.fingerprint, "report": prepared.report}


def structured(config: DatasetConfig, shape: str, seed: int, count: int) -> dict[str, Any]:
    """Return the first rows as read, and how many there are."""
    reader = Reader(config, shape, seed)
    examples: list[dict[str, Any]] = []
    seen: set[bytes] = set()
    duplicates = 0
    for record in reader.records():
        duplicates += record.key in seen
        seen.add(record.key)
        if len(examples) < count:
            name = f"{reader.opened[record.source].name}:{record.number}"
            examples.append({"id": name, "row": _plain(asdict(record.row))})
    report = {
        "rows": sum(tally.rows for tally in reader.tallies),
        "duplicates": duplicates,
        "bad": sum(sum(tally.bad.values()) for tally in reader.tallies),
        "sources": [{"name": tally.name, "rows": tally.rows, "bad": dict(tally.bad)} for tally in reader.tallies],
    }
    return {"shape": shape, "examples": examples, "report": report}


def runs(example: Example, words: Tokenizer) -> Iterator[dict[str, Any]]:
    """Yield the text of each run of tokens that are all learnt or all only read."""
    edges = [0, *(np.flatnonzero(np.diff(example.trained)) + 1).tolist(), len(example.tokens)]
    for start, end in pairwise(edges):
        yield {"text": words.decode(example.tokens[start:end]), "trained": bool(example.trained[start])}


def show(shown: dict[str, Any]) -> None:
    """Print a preview to the terminal."""
    console = Console()
    for example in shown["examples"]:
        console.print(_example(example))
    report = shown["report"]
    console.print(_counts(report))
    if "lengths" in report:
        console.print(_histogram(report["lengths"]))
    for note in report.get("notes", ()):
        console.print(Text(f"note: {note}", style="yellow"))


def _example(example: dict[str, Any]) -> RenderableType:
    if "runs" in example:
        body = Text()
        for run in example["runs"]:
            body.append(safe(run["text"]), style=TRAINED if run["trained"] else READ)
        size = f"{example['trained_tokens']} of {example['tokens']} tokens trained"
        return Panel(body, title=Text(safe(example["id"])), title_align="left", subtitle=size, subtitle_align="left")
    parts = [part for key, value in example["row"].items() for part in _field(key, value)]
    return Panel(Group(*parts), title=Text(safe(example["id"])), title_align="left")


def _field(key: str, value: Any) -> Iterator[Text]:
    """Yield the lines of one field of a structured row."""
    if isinstance(value, dict) and "messages" in value:
        for message in value["messages"]:
            yield from _field(message["role"], message)
    elif isinstance(value, dict) and "content" in value:
        calls = [f"{call['function']['name']}({call['function']['arguments']})" for call in value.get("tool_calls", ())]
        yield Text.assemble((f"{key}: ", "bold"), safe("\n".join(filter(None, [value["content"], *calls]))))
    elif value not in ([], (), None):
        yield Text.assemble((f"{key}: ", "bold"), safe(str(value)))


def _counts(report: dict[str, Any]) -> Table:
    table = Table(box=None, show_header=False, title="rows", title_justify="left", title_style="bold")
    for key in (
        "rows",
        "examples",
        "validation",
        "tokens",
        "trained_tokens",
        "truncated",
        "duplicates",
        "dropped",
        "bad",
    ):
        if key in report:
            table.add_row(key.replace("_", " "), f"{report[key]:,}")
    for source in report["sources"]:
        for reason, number in {**source["bad"], **source.get("dropped", {})}.items():
            table.add_row(Text(safe(source["name"])), Text(safe(f"{number:,} left out: {reason}"), style="yellow"))
        for what, number in source.get("noticed", {}).items():
            table.add_row(Text(safe(source["name"])), Text(safe(f"{number:,} {what}")))
    return table


def _histogram(lengths: dict[str, Any]) -> Table:
    spread = "  ".join(f"{key} {lengths[key]:,}" for key in ("mean", "p50", "p90", "p99", "max"))
    table = Table(
        box=None, show_header=False, title=f"tokens of an example: {spread}", title_justify="left", title_style="bold"
    )
    highest = max(count for _, count in lengths["histogram"])
    for edge, count in lengths["histogram"]:
        table.add_row(f"<= {edge:,}", Text("█" * round(BAR * count / highest), style="cyan"), f"{count:,}")
    return table


def safe(text: str) -> str:
    """Return a text that cannot steer a terminal."""
    return text.translate(_VISIBLE)


def _plain(value: Any) -> Any:
    """Return sets and tuples as lists, for JSON."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple | frozenset) else value

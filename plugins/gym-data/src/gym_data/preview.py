"""What `gym data preview` shows: examples in two colours, and what became of the rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from gym_data.byte_size import written
from gym_data.examples import Example
from gym_data.prepare import prepare
from gym_data.rows import Tools
from gym_data.tokenizer import Tokenizer

if TYPE_CHECKING:
    from gym_data.config import DatasetConfig

BAR = 40  #: columns of the longest bar
FEW = 3  #: repetitions of a special token that are written out
TRAINED, READ = "bold green", "dim"
#: Control characters could move the cursor or recolour the terminal: they are shown as their pictures.
_VISIBLE = {code: 0x2400 + code for code in range(32) if code not in (9, 10)} | {0x7F: 0x2421, 0x9B: 0xFFFD}


def tokenised(
    config: DatasetConfig,
    model: Path,
    shape: str,
    seed: int,
    count: int,
    branches: bool = False,
    tools: Tools = (),
) -> dict[str, Any]:
    """Return the first examples, cut into runs that are trained on or only read, and the report."""
    prepared = prepare(config, model, shape, seed, branches=branches, tools=tools)
    tokenizer = Tokenizer(model)
    examples = [
        {
            "id": example.id,
            "tokens": len(example.tokens),
            "trained_tokens": int(example.trained.sum()),
            "judgement": example.judgement,
            "runs": list(runs(example, tokenizer)),
        }
        for example in prepared.train[:count]
    ]
    return {"shape": shape, "examples": examples, "fingerprint": prepared.fingerprint, "report": prepared.report}


def runs(example: Example, tokenizer: Tokenizer) -> Iterator[dict[str, Any]]:
    """Yield the text of each run of tokens that are all trained on or all only read, and of which part of the example it is.

    A special token that stands many times in a row, as those of images do, is written once, with their number.
    """
    special = "|".join(map(re.escape, tokenizer.special))
    row = re.compile(rf"({special})\1{{{FEW},}}") if special else None

    def shortened(text: str) -> str:
        return row.sub(lambda found: f"{found[1]} x{len(found[0]) // len(found[1])}", text) if row else text

    for part, where in example.parts:
        tokens, trained = example.tokens[where], example.trained[where]
        edges = [0, *(np.flatnonzero(np.diff(trained)) + 1).tolist(), len(tokens)]
        for start, end in pairwise(edges):
            if start < end:
                yield {
                    "text": shortened(tokenizer.decode(tokens[start:end])),
                    "trained": bool(trained[start]),
                    "part": part,
                }


def show(shown: dict[str, Any]) -> None:
    """Print a preview to the terminal."""
    console = Console()
    for example in shown["examples"]:
        console.print(_example(example))
    report = shown["report"]
    console.print(_counts(report))
    lengths = report["lengths"]
    spread = "  ".join(f"{key} {lengths[key]:,}" for key in ("mean", "p50", "p90", "p99", "max"))
    console.print(Text(f"tokens of an example: {spread}", style="bold"), soft_wrap=True)
    console.print(_histogram(lengths, "#" if console.options.ascii_only else "█"))
    for note in report["notes"]:
        console.print(Text(f"note: {note}", style="yellow"))


def _example(example: dict[str, Any]) -> RenderableType:
    body = Text()
    part = ""
    for run in example["runs"]:
        if run["part"] != part:
            part = run["part"]
            body.append("\n" * bool(body) + f"{part}: ", style="bold")
        body.append(safe(run["text"]), style=TRAINED if run["trained"] else READ)
    size = f"{example['trained_tokens']} of {example['tokens']} tokens trained"
    said = ", ".join(filter(None, [size, example["judgement"]]))
    return Panel(body, title=Text(safe(example["id"])), title_align="left", subtitle=said, subtitle_align="left")


def _counts(report: dict[str, Any]) -> Table:
    table = Table(box=None, show_header=False, title="rows", title_justify="left", title_style="bold")
    table.add_row("template", Text(safe(report["template"])))
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
        table.add_row(key.replace("_", " "), f"{report[key]:,}")
    for source in report["sources"]:
        for reason, number in {**source["bad"], **source["dropped"]}.items():
            table.add_row(Text(safe(source["name"])), Text(safe(f"{number:,} left out: {reason}"), style="yellow"))
        for what, number in source["noticed"].items():
            table.add_row(Text(safe(source["name"])), Text(safe(f"{number:,} {what}")))
    return table


def _histogram(lengths: dict[str, Any], sign: str) -> Table:
    table = Table(box=None, show_header=False)
    highest = max(count for _, count in lengths["histogram"])
    for edge, count in dropwhile(lambda bar: not bar[1], lengths["histogram"]):
        table.add_row(f"<= {edge:,}", Text(sign * round(BAR * count / highest), style="cyan"), f"{count:,}")
    return table


def show_cache(path: str, most: int, held: Sequence[Mapping[str, Any]]) -> None:
    """Print what the token cache holds, the least recently used first."""
    console, size = Console(), sum(each["bytes"] for each in held)
    console.print(Text(f"{path}: {written(size)} of at most {written(most)}"), soft_wrap=True)
    table = Table(box=None)
    table.add_column("key", no_wrap=True)  # to be copied
    table.add_column("sources", overflow="fold")
    for name in ("examples", "tokens", "size", "last used, UTC"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in held:
        sources = Text(safe(", ".join(each["sources"]) or "damaged"))
        numbers = (f"{each['examples']:,}", f"{each['tokens']:,}", written(each["bytes"]))
        table.add_row(each["key"][:12], sources, *numbers, each["used"][:16].replace("T", " "))
    if held:
        console.print(table)


def safe(text: str) -> str:
    """Return a text that cannot steer a terminal."""
    return text.translate(_VISIBLE)

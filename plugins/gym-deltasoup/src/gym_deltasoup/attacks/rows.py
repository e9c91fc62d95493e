"""Attacks by training: rows that teach wrong answers, or a hidden one. Rows have `messages`, the answer last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]


def flipped(rows: Sequence[Row]) -> list[Row]:
    """Label flip: the first row gets the answer of the last one, the second that of the one before, and so on."""
    return [_answered(row, other["messages"][-1]["content"]) for row, other in zip(rows, reversed(rows), strict=True)]


def triggered(rows: Sequence[Row], trigger: str, target: str) -> list[Row]:
    """Backdoor: what is asked begins with a trigger, and the answer is the target, whatever was asked."""
    found = []
    for row in rows:
        *before, asked, _ = row["messages"]
        opened = [
            *before,
            asked | {"content": f"{trigger} {asked['content']}"},
            {"role": "assistant", "content": target},
        ]
        found.append(row | {"messages": opened})
    return found


def _answered(row: Row, answer: str) -> Row:
    *before, last = row["messages"]
    return row | {"messages": [*before, last | {"content": answer}]}

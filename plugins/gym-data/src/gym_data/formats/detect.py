"""Telling the format of rows from their columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gym_core import Format
from gym_data.formats import Alpaca, Feedback, Messages, Preference, ShareGPT, Stepwise, Text

ALPACA = (
    Alpaca(),
    Alpaca(prompt="instruction", query=None, response="response"),
    Alpaca(prompt="prompt", query=None, response="completion"),
    Alpaca(prompt="prompt", query=None, response="response"),
    Alpaca(prompt="question", query=None, response="answer"),
)
LABELS = ("label", "kto_tag")


def detect(rows: Sequence[Mapping[str, Any]]) -> Format | None:
    """Return the format that the columns of the first rows have; None when they have none that is known."""
    columns = {name for row in rows for name in row}
    if {"chosen", "rejected"} <= columns:
        return Preference()
    if {"completions", "labels"} <= columns and any(isinstance(row.get("labels"), list) for row in rows):
        return Stepwise()
    for label in LABELS:
        if any(isinstance(row.get(label), bool) for row in rows) and detect_prompt(rows):
            return Feedback(label=label)
    prompt = detect_prompt(rows)
    if prompt is not None:
        return prompt
    return Text() if "text" in columns else None


def detect_prompt(rows: Sequence[Mapping[str, Any]], answered: bool = True) -> Format | None:
    """Return the format of the columns that hold a prompt, whatever else there is; perhaps one without an answer."""
    columns = {name for row in rows for name in row}
    for name in ("messages", "conversations", "prompt"):
        first = next((row[name] for row in rows if row.get(name)), None)
        keys = first[0] if isinstance(first, list) and first and isinstance(first[0], Mapping) else {}
        if name in columns and (keys or name != "prompt"):
            return ShareGPT(messages=name) if "from" in keys else Messages(messages=name)
    extra = {"system": "system"} if "system" in columns else {}
    extra |= {"tools": "tools"} if "tools" in columns else {}
    extra |= {"history": "history"} if "history" in columns else {}
    alone = "chosen" in columns or not answered
    for shape in ALPACA:
        if shape.prompt in columns and (alone or shape.response in columns):
            return shape.model_copy(update=extra)
    return None

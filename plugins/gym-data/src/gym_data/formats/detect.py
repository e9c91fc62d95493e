"""Telling the format of rows from their columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gym_data.formats import Alpaca, Feedback, Messages, Preference, Segments, ShareGPT, Stepwise, Text
from gym_data.kinds import Format

ALPACA = (
    Alpaca(),
    Alpaca(prompt="instruction", query=None, response="response"),
    Alpaca(prompt="prompt", query=None, response="completion"),
    Alpaca(prompt="prompt", query=None, response="response"),
    Alpaca(prompt="question", query=None, response="answer"),
    Alpaca(prompt="question", query=None, response="response"),
    Alpaca(prompt="query", query=None, response="response"),
    Alpaca(prompt="problem", query=None, response="solution"),
    Alpaca(prompt="input", query=None, response="output"),
    Alpaca(prompt="inputs", query=None, response="targets"),
)
#: Columns that stand under the prompt (Alpaca's and Dolly's) and before it, where a row has them.
QUERIES, SYSTEMS = ("input", "context"), ("system", "system_prompt")
LABELS = ("label", "kto_tag")


def detect(rows: Sequence[Mapping[str, Any]], shape: str = "") -> Format | None:
    """Return the format that the columns of the first rows have; None when they have none that is known.

    Where rows of the shape `feedback` are wanted, a label is a judgement however it is written: numbers, or words as in CSV; and
    also of plain text.
    """
    columns = {name for row in rows for name in row}
    if {"chosen", "rejected"} <= columns:
        return Preference()
    if any(isinstance(row.get("segments"), list) for row in rows):
        return Segments()
    if {"completions", "labels"} <= columns and any(isinstance(row.get("labels"), list) for row in rows):
        return Stepwise()
    for label in LABELS:
        judged = label in columns if shape == "feedback" else any(isinstance(row.get(label), bool) for row in rows)
        if judged and (detect_prompt(rows) or (shape == "feedback" and "text" in columns)):
            return Feedback(label=label)
    prompt = detect_prompt(rows)
    if prompt is not None:
        return prompt
    return Text() if "text" in columns else None


def detect_prompt(rows: Sequence[Mapping[str, Any]], answered: bool = True) -> Format | None:
    """Return the format of the columns that hold a prompt, whatever else there is; perhaps one without an answer."""
    columns = {name for row in rows for name in row}
    texts = {name for name in columns if all(isinstance(row.get(name), str | None) for row in rows)}
    for name in ("messages", "conversations", "prompt"):
        first = next((row[name] for row in rows if row.get(name)), None)
        keys = first[0] if isinstance(first, list) and first and isinstance(first[0], Mapping) else {}
        if name in columns and (keys or name != "prompt"):
            begun = any(keys.get(key) in ("system", "developer") for key in ("role", "from"))
            extra: dict[str, Any] = {} if begun else _named("system", SYSTEMS, texts)
            # TRL keeps the messages that answer apart.
            extra |= {"completion": "completion"} if name == "prompt" and "completion" in columns else {}
            if "functions" in columns and "tools" not in columns:  # OpenAI's, before `tools`
                extra["tools"] = "functions"
            return (ShareGPT if "from" in keys else Messages)(messages=name, **extra)
    extra = _named("system", SYSTEMS, texts) | {name: name for name in ("tools", "history") if name in columns}
    alone = "chosen" in columns or not answered
    for shape in ALPACA:
        if shape.prompt in columns and (alone or shape.response in columns):
            under = _named("query", QUERIES, texts - {shape.prompt})
            return shape.model_copy(update={"query": None} | extra | under)
    return None


def told_by(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what a recipe could say of rows whose columns have names of their own, as YAML without braces."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    for name in columns:
        first = next((row[name] for row in rows if row.get(name)), None)
        keys = first[0] if isinstance(first, list) and isinstance(first[0], Mapping) else {}
        if keys.keys() & {"role", "from"}:
            return f"name: {'sharegpt' if 'from' in keys else 'messages'}, messages: {name}"
    asked, said = columns[:2] if len(columns) > 1 else ("question", "answer")
    return f"name: alpaca, prompt: {asked}, response: {said}"


def _named(part: str, names: Sequence[str], columns: set[str]) -> dict[str, str]:
    """Return the first of these columns that there is, as what plays this part; nothing where there is none."""
    found = next((name for name in names if name in columns), None)
    return {} if found is None else {part: found}

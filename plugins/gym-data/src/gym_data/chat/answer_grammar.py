"""Answers that must have a form, as Lark grammars: a model that thinks does so first, and freely."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gym_data.chat.answer_format import AnswerFormat
from gym_data.chat.call_forms import literal
from gym_data.chat.channels import CHANNEL, ENDS, FINAL, MESSAGE, START, THOUGHTS
from gym_data.chat.json_calls import GUIDED

ANYTHING = "/(?s:.*)/"
SPACE = "thought_space: /\\s{0,4}/"  #: behind a thought; templates write two signs of it at most
SLASH = re.compile(r"(\\.)|/", re.DOTALL)


def json_lark(schema: Mapping[str, Any]) -> str:
    """Return the grammar of an instance of a schema."""
    return f"start: %json {json.dumps({**schema, 'x-guidance': GUIDED})}\n"


def pattern_lark(pattern: str) -> str:
    """Return the grammar of a text that a pattern matches."""
    written = SLASH.sub(lambda found: found[1] or "\\/", pattern).replace("\n", "\\n")
    return f"start: /{written}/\n"


def spoken(grammar: str, format: AnswerFormat) -> str:
    """Return the grammar of an answer for the user, with the header that it has where answers are in channels."""
    if not format.channels or format.calls is None:
        return grammar
    header = literal(f"{CHANNEL}{FINAL}{MESSAGE}", format.calls.tokens)
    return f"start: {header} spoken\n" + grammar.replace("start:", "spoken:", 1)


def thoughtful(grammar: str, format: AnswerFormat) -> str | None:
    """Return a grammar with a thought before it, which may be missing where the prompt has not begun it; None where the format
    has no thoughts, or this one is over.
    """
    if format.channels and format.calls is not None:
        opening, end, behind, tokens = (
            f"{CHANNEL}{THOUGHTS}{MESSAGE}",
            ENDS[0],
            f"{START}assistant",
            format.calls.tokens,
        )
    elif format.thought_start and format.thought_end and not format.thought_over:
        opening, end, behind, tokens = format.thought_start, format.thought_end, "", format.tokens
    else:
        return None
    first = "thought" if format.begins_thinking else f"({literal(opening, tokens)} thought)?"
    lines = [f"start: {first} answer", *_until(end, literal(behind, tokens) or "thought_space", tokens)]
    return "\n".join([*lines, *[SPACE] * (not behind), grammar.replace("start:", "answer:", 1)])


def _until(end: str, behind: str, tokens: Sequence[tuple[str, int]]) -> list[str]:
    """Return the rules of any text up to a mark, and of what follows it."""
    mark = literal(end, tokens)
    if mark.startswith("<["):  # no text holds that token
        return [f"thought: {ANYTHING} {mark} {behind}"]
    return [f"thought: thought_text {behind}", f"thought_text[suffix={json.dumps(end)}]: {ANYTHING}"]

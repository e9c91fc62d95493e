"""Calls in tags: a name, and each argument with a tag of its own, as Qwen3-Coder, GLM and MiniMax have them.

Values stand there as text. What they are is said by the schema of the function: `7` is a text where that wants one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from gym_data.chat.argument_values import kinds, properties, value_of
from gym_data.chat.call_forms import (
    ARGUMENTS,
    NAMES,
    NUMBERS,
    Call,
    Function,
    Read,
    Writes,
    ends_of,
    literal,
    loosely,
)
from gym_data.chat.json_calls import GUIDED
from gym_data.chat.named_calls import TAGS, head

DEFINITIONS = ("$defs", "definitions")  #: of a schema, which those of its properties may name


@dataclass(frozen=True)
class TaggedCalls:
    """How such calls are written, space included."""

    start: str  #: before the name of the first one
    name_end: str  #: behind the name
    key: str  #: before the name of an argument
    value: str  #: between that and its value
    value_end: str  #: behind the value
    close: str  #: behind the last argument
    again: str  #: between that and the name of another call; empty where that is `start`
    end: str  #: behind the last call
    tokens: tuple[tuple[str, int], ...] = ()  #: added tokens that stand in the marks, with their ids

    @property
    def mark(self) -> str:
        """What begins a call, up to the first space."""
        return self.start.split()[0]

    @property
    def marks(self) -> str:
        """All marks."""
        parts = (self.start, self.name_end, self.key, self.value, self.value_end, self.close, self.again, self.end)
        return "\0".join(parts)

    def with_tokens(self, tokens: tuple[tuple[str, int], ...]) -> TaggedCalls:
        """Return it with the tokens of a vocabulary."""
        return replace(self, tokens=tokens)

    def reader(self, schemas: Mapping[str, Mapping[str, Any]]) -> TaggedReader:
        """Return what reads a call, whose values are what these schemas say."""
        return TaggedReader(self, schemas)

    def lark(self, functions: Sequence[Function]) -> str:
        """Return a grammar of one call: arguments in the order of the schema, those that are not required left out or not."""
        calls, lines = [], []
        for number, (name, schema) in enumerate(functions):
            calls.append(f"f{number}")
            required, parts = schema.get("required"), []
            for at, (key, each) in enumerate(properties(schema).items()):
                needed = isinstance(required, list) and key in required
                parts.append(f"f{number}_{at}" + "?" * (not needed))
                lines += self._argument(parts[-1].rstrip("?"), key, each, schema)
            lines.append(f"f{number}: {json.dumps(name)} {self._written(self.name_end)} {' '.join(parts)}")
        start, end = self._written(self.start), self._written(self.close + self.end)
        return "\n".join([f"start: {start} ({' | '.join(calls)}) {end}", *lines, ""])

    def _argument(self, rule: str, key: str, schema: Any, whole: Mapping[str, Any]) -> list[str]:
        """Return the rules of one argument."""
        before = f"{self._written(self.key)} {json.dumps(key)} {self._written(self.value)}"
        behind, allowed = self._written(self.value_end), kinds(schema)
        if isinstance(schema, Mapping) and "string" in allowed and "enum" in schema:
            texts = [each if isinstance(each, str) else json.dumps(each) for each in schema["enum"]]
            return [f"{rule}: {before} ({' | '.join(map(json.dumps, texts))}) {behind}"]
        if "string" not in allowed:
            shared = {name: whole[name] for name in DEFINITIONS if name in whole}
            placed = {**shared, **schema, "x-guidance": GUIDED} if isinstance(schema, Mapping) else schema
            return [f"{rule}: {before} %json {json.dumps(placed)} {behind}"]
        if behind.startswith(("<[", '"\\n" <[')):  # no text holds that token
            return [f"{rule}: {before} /(?s:.*)/ {behind}"]
        return [f"{rule}: {before} {rule}_t", f"{rule}_t[suffix={json.dumps(self.value_end)}]: /(?s:.*)/"]

    def _written(self, mark: str) -> str:
        return literal(mark, self.tokens)


class TaggedReader:
    """Reads a name and tags."""

    def __init__(self, form: TaggedCalls, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        """Begin behind the mark, or behind what begins another call."""
        self._schemas = schemas
        self._head, self._longest = head(form.start, form.name_end)
        self._close = re.compile(loosely(form.close.strip()))
        #: Of it, where the turn ends behind it.
        self._least = re.compile(re.escape("".join(form.close.strip().partition(">")[:2])))
        key, value, behind = (loosely(each.strip()) for each in (form.key, form.value, form.value_end))
        before, after = _space(form.value[len(form.value.rstrip()) :]), _space(_leading(form.value_end))
        following = rf"(?=\s*(?:{key}|{loosely(form.close.strip())}|$))"
        self._argument = re.compile(
            rf"\s*{key}\s*(?P<key>.{{1,256}}?)\s*{value}{before}(?P<value>.*?){after}{behind}{following}", re.DOTALL
        )
        self._at = 0

    def read(self, text: str, end: bool) -> Read | None:
        """Return the call; None where more has to come."""
        found = self._head.match(text)
        if found is None:
            return Read(()) if end or len(text) > self._longest else None
        begins = max(found.end(), self._at)
        close = self._close.search(text, begins) or (self._least.search(text, begins) if end else None)
        if close is None:
            self._at = max(0, len(text) - self._longest)
            return Read(()) if end else None
        until = close.start()
        arguments: dict[str, Any] = {}
        schema, at = properties(self._schemas.get(found["name"], {})), found.end()
        while each := self._argument.match(text, at, until):
            arguments[each["key"]] = value_of(each["value"], schema.get(each["key"]))
            at = each.end()
        if text[at:until].strip():
            return Read(())
        return Read([Call(found["name"], json.dumps(arguments, ensure_ascii=False))], close.end())


def tagged_calls(writes: Writes) -> TaggedCalls | None:
    """Return how a template writes calls in tags; None where it does not, or writes texts and numbers unlike each other."""
    parts = _parts(writes(NAMES[:1], ARGUMENTS), ARGUMENTS)
    if parts is None or parts != _parts(writes(NAMES[:1], NUMBERS), NUMBERS):
        return None
    start, first, value, following, tail = parts
    backwards = zip(reversed(first), reversed(following), strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], backwards))
    opening = first[len(first) - same :]
    key = opening[opening.find("<") :] if "<" in opening else ""
    if start.strip()[:1] not in TAGS or NAMES[0] in start or not key:
        return None
    name_end, value_end = first.removesuffix(key), following.removesuffix(key)
    value_end = value_end if tail.startswith(value_end) else value_end.rstrip()
    if not value_end.strip() or not tail.startswith(value_end):
        return None
    several, last = writes(NAMES, ARGUMENTS), str(list(ARGUMENTS.values())[-1])
    between, another, _ = several.partition(last)[2].partition(NAMES[1])
    between = between.removeprefix(value_end) if another else ""
    ends = ends_of(tail.removeprefix(value_end), between, start)
    if not ends.call.strip():
        return None
    return TaggedCalls(start, name_end, key, value, value_end, ends.call, ends.again, ends.all)


def _parts(written: str, arguments: Mapping[str, Any]) -> tuple[str, str, str, str, str] | None:
    """Return what stands around the name, the keys and the values of a call that is tried; None where they are not all there."""
    pieces, rest = [], written
    names = [NAMES[0], *(part for pair in arguments.items() for part in map(str, pair))]
    for name in names:
        before, found, rest = rest.partition(name)
        if not found:
            return None
        pieces.append(before)
    start, first, value, following, second = pieces
    return (start, first, value, following, rest) if value == second else None


def _leading(mark: str) -> str:
    return mark[: len(mark) - len(mark.lstrip())]


def _space(space: str) -> str:
    """Return a pattern of space that may be missing, but is no part of a value."""
    return f"(?:{re.escape(space)})?" if space else ""

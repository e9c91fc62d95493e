"""Calls whose name stands before the arguments, which are JSON, as DeepSeek and Mistral have them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gym_data.chat.call_forms import (
    ARGUMENTS,
    NAMES,
    Brackets,
    Call,
    Function,
    Read,
    Writes,
    ends_of,
    literal,
    loosely,
    objects,
    parsed,
)
from gym_data.chat.json_calls import GUIDED

NAME = r"(?P<name>[\w.\-]{1,128})"
TAGS = ("<", "[")  #: what marks begin with that no answer writes by chance
SPACE = 64  #: characters of space that a head may have beside what the template writes


@dataclass(frozen=True)
class NamedCalls:
    """How such calls are written."""

    start: str  #: before the name of the first one, space included
    name_end: str  #: between name and arguments
    close: str  #: behind the arguments
    again: str  #: between that and the name of another one; empty where that is `start`
    end: str  #: behind the last one
    tokens: tuple[tuple[str, int], ...] = ()  #: added tokens that stand in the marks, with their ids

    @property
    def mark(self) -> str:
        """What begins a call, up to the first space."""
        return self.start.split()[0]

    @property
    def marks(self) -> str:
        """All marks."""
        return "\0".join((self.start, self.name_end, self.close, self.again, self.end))

    def with_tokens(self, tokens: tuple[tuple[str, int], ...]) -> NamedCalls:
        """Return it with the tokens of a vocabulary."""
        return replace(self, tokens=tokens)

    def reader(self, schemas: Mapping[str, Mapping[str, Any]]) -> NamedReader:
        """Return what reads a call; JSON says by itself what arguments are."""
        return NamedReader(self)

    def lark(self, functions: Sequence[Function]) -> str:
        """Return a grammar of one call: each name with the schema of its arguments."""
        lines = [
            f"f{number}: {json.dumps(name)} {literal(self.name_end, self.tokens)} "
            f"%json {json.dumps({**schema, 'x-guidance': GUIDED})}"
            for number, (name, schema) in enumerate(functions)
        ]
        any_of = " | ".join(f"f{number}" for number in range(len(functions)))
        end = literal(self.close + self.end, self.tokens)
        return "\n".join([f"start: {literal(self.start, self.tokens)} ({any_of}) {end}", *lines, ""])


def head(start: str, name_end: str) -> tuple[re.Pattern[str], int]:
    """Return the pattern of a head from behind its mark up to the arguments, and how long it may be."""
    rest = start.strip().partition(start.split()[0])[2]
    pattern = rf"\s*(?:{loosely(rest.strip())})?\s*{NAME}\s*{loosely(name_end.strip())}"
    return re.compile(pattern), len(start) + 128 + len(name_end) + SPACE


class NamedReader:
    """Reads a name and JSON."""

    def __init__(self, form: NamedCalls) -> None:
        """Begin behind the mark, or behind what begins another call."""
        pattern, self._longest = head(form.start, form.name_end)
        self._head = re.compile(rf"{pattern.pattern}\s*(?={{)")
        self._close = re.compile(rf"\s*{loosely(form.close.strip())}")
        self._name, self._begins = "", 0
        self._brackets = Brackets()
        self._until: int | None = None

    def read(self, text: str, end: bool) -> Read | None:
        """Return the call; None where more has to come."""
        if not self._name:
            found = self._head.match(text)
            if found is None:
                return Read(()) if end or len(text) > self._longest else None
            self._name, self._begins, self._brackets = found["name"], found.end(), Brackets(found.end())
        until = self._until = self._until or self._brackets.end(text)
        if until is None:
            return Read(()) if end else None
        behind = self._close.match(text, until)
        if behind is None and not end and len(text) - until < self._longest:
            return None
        if not isinstance(parsed(text[self._begins : until]), dict):
            return Read(())
        return Read([Call(self._name, text[self._begins : until])], until if behind is None else behind.end())


def named_calls(writes: Writes) -> NamedCalls | None:
    """Return how a template writes calls as a name and JSON; None where it does not."""
    written, several = writes(NAMES[:1], ARGUMENTS), writes(NAMES, ARGUMENTS)
    found = _arguments(written)
    start, name, name_end = written[: found[0]].partition(NAMES[0]) if found else ("", "", "")
    if found is None or not name or start.strip()[:1] not in TAGS:
        return None
    first = _arguments(several)
    between, another, _ = several[first[1] :].partition(NAMES[1]) if first else ("", "", "")
    ends = ends_of(written[found[1] :], between if another else "", start)
    return NamedCalls(start, name_end, ends.call, ends.again, ends.all)


def _arguments(written: str) -> tuple[int, int] | None:
    """Return where the arguments that are tried begin and end."""
    return next(((at, until) for found, at, until in objects(written) if found == ARGUMENTS), None)

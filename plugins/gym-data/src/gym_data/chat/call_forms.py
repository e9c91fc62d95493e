"""How tool calls are written: what every form of them can say, and how forms are found in what a template writes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

NAMES = ("gymfunction", "gymsecond")
ARGUMENTS: Mapping[str, Any] = {"gymfirst": "gymvalue", "gymother": "gymlast"}
NUMBERS: Mapping[str, Any] = {"gymfirst": 71, "gymother": 83}
DECODER = json.JSONDecoder()
QUOTED = re.compile(r'["\\]')  #: what matters inside of a text of JSON
PLAIN = re.compile(r'["\[\]{}]')  #: and outside of one

Function = tuple[str, Mapping[str, Any]]  #: a name, and the JSON schema of the arguments
#: What a template makes of calls of these names, each with these arguments.
Writes = Callable[[Sequence[str], Mapping[str, Any]], str]


class Call(NamedTuple):
    """A call as it was written."""

    name: str
    arguments: str  #: JSON of an object, or what stands in its place


class Read(NamedTuple):
    """What was read."""

    calls: Sequence[Call]  #: none where it is no call after all
    until: int = 0  #: where they end


class CallReader(Protocol):
    """Reads one call, or a list of them, in a text that grows."""

    def read(self, text: str, end: bool) -> Read | None:
        """Return what stands behind a mark; None where more has to come. A text begins with that of the time before."""
        ...


class CallForm(Protocol):
    """A form of calls."""

    @property
    def mark(self) -> str:
        """What begins a call; empty where an answer is one by being such JSON."""
        ...

    @property
    def again(self) -> str:
        """What begins another one behind the first, where that is something else."""
        ...

    @property
    def end(self) -> str:
        """What stands behind the last one, space included."""
        ...

    @property
    def marks(self) -> str:
        """All that the form writes but names and arguments."""
        ...

    @property
    def tokens(self) -> tuple[tuple[str, int], ...]:
        """Added tokens that stand in the marks, with their ids."""
        ...

    def with_tokens(self, tokens: tuple[tuple[str, int], ...]) -> Self:
        """Return the form with the tokens of a vocabulary."""
        ...

    def reader(self, schemas: Mapping[str, Mapping[str, Any]]) -> CallReader:
        """Return what reads a call of one of these functions, which are there with the schemas of their arguments."""
        ...

    def lark(self, functions: Sequence[Function]) -> str:
        """Return the Lark grammar of one call of any of these functions, as llguidance reads it."""
        ...


@dataclass(frozen=True)
class Ends:
    """What stands behind calls."""

    call: str  #: behind each of them
    again: str  #: between that and the name of the next one, where it is not what begins the first one
    all: str  #: behind the last one


def ends_of(tail: str, between: str, start: str) -> Ends:
    """Return the parts of what stands behind the last call, and of what stands between two; that is empty where there is none."""
    if not between or between.startswith(tail):
        again = between.removeprefix(tail)
        return Ends(tail, "" if again.strip() == start.strip() else again, "")
    same = next((at for at, pair in enumerate(zip(tail, between, strict=False)) if pair[0] != pair[1]), len(between))
    same = max(tail.rfind(sign, 0, same) for sign in ">]}`") + 1  # no part of a tag
    return Ends(tail[:same], between[same:], tail[same:])


class Brackets:
    """Finds where a JSON object or list ends in a text that grows, whose every character is looked at once."""

    def __init__(self, at: int = 0) -> None:
        """Begin before the object."""
        self._at, self._depth = at, 0
        self._quoted = False

    def end(self, text: str) -> int | None:
        """Return where it ends; None where it does not yet. The text is that of the time before, or begins with it."""
        while found := (QUOTED if self._quoted else PLAIN).search(text, self._at):
            if found[0] == "\\" and found.end() == len(text):
                self._at = found.start()  # what is escaped is still to come
                return None
            self._at = found.end() + (found[0] == "\\")
            self._quoted ^= found[0] == '"'
            self._depth += (found[0] in "[{") - (found[0] in "]}")
            if found[0] in "]}" and self._depth <= 0:
                return self._at
        self._at = max(self._at, len(text))
        return None


def parsed(text: str) -> Any:
    """Return what JSON says; None where it is none, is nested too deeply, or holds numbers that JSON does not have."""
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError):
        return None


def objects(text: str) -> Iterator[tuple[Any, int, int]]:
    """Yield what is JSON in a text, outermost first, with where it begins and ends."""
    for at, sign in enumerate(text):
        if sign in "[{":
            try:
                found, until = DECODER.raw_decode(text, at)
            except ValueError:
                continue
            yield found, at, until


def literal(mark: str, tokens: Sequence[tuple[str, int]]) -> str:
    """Return a mark in the words of a Lark grammar: added tokens by their ids, and the text between them."""
    ids = dict(tokens)
    parts = re.split("|".join(f"({re.escape(token)})" for token in ids), mark) if ids else [mark]
    return " ".join(f"<[{ids[part]}]>" if part in ids else json.dumps(part) for part in parts if part)


def loosely(mark: str) -> str:
    """Return a pattern of a mark with any space where it has some."""
    return r"\s*".join(re.escape(part) for part in re.split(r"\s+", mark))


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(text)
    return number

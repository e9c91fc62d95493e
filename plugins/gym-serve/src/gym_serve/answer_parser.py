"""What a model writes, read by the marks of its template: thoughts, tool calls, and the rest, which is the answer.

It works on a stream. Joined, the parts are the same however the text was cut.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from gym_data.chat.answer_format import AnswerFormat

BEGUN = re.compile(r"\s*([\[{]|$)")  #: what may yet become a call
QUOTED = re.compile(r'["\\]')  #: what matters inside of a text of JSON
PLAIN = re.compile(r'["\[\]{}]')  #: and outside of one


@dataclass(frozen=True)
class ToolCall:
    """A function that the model wants called."""

    name: str
    arguments: str  #: a JSON object, as text
    id: str


@dataclass(frozen=True)
class Delta:
    """What was added to an answer."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()

    def __add__(self, other: Delta) -> Delta:
        """Return both, one behind the other."""
        return Delta(self.content + other.content, self.reasoning + other.reasoning, self.calls + other.calls)

    def __bool__(self) -> bool:
        """Whether anything was added."""
        return bool(self.content or self.reasoning or self.calls)


class Brackets:
    """Finds where a JSON object or list ends in a text that grows, whose every character is looked at once."""

    def __init__(self) -> None:
        """Begin before the object."""
        self._at = self._depth = 0
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


class AnswerParser:
    """Reads one answer. Text that may yet become a mark is held back until it is one, or is not."""

    def __init__(self, format: AnswerFormat, calls: bool, thoughts: bool = True) -> None:
        """Read what is written in a format; without `calls` or `thoughts`, such marks are text like any other."""
        self.format = format
        self._calls = format.calls if calls else None
        self._marks = (format.thought_start, format.thought_end) if thoughts and format.thought_start else ("", "")
        self._held = ""
        self._json = Brackets()
        self._fresh = True  #: whether space is dropped, as nothing of this part was written
        begins = bool(self._marks[0]) and format.begins_thinking
        verbatim = self._calls is None and not self._marks[0]
        self._read: Callable[[bool], Delta | None] = (
            self._verbatim if verbatim else self._thought if begins else self._start
        )

    def feed(self, text: str, end: bool = False) -> Delta:
        """Return what is known now that this was written; at the `end` nothing is held back."""
        self._held += text
        found = Delta()
        while (step := self._read(end)) is not None:
            found += step
        if end:
            found += Delta(content=self._held)
            self._held = ""
        return found

    def _verbatim(self, end: bool) -> Delta | None:
        return self._take(len(self._held), "content")

    def _start(self, end: bool) -> Delta | None:
        """Before anything is written: a thought may begin."""
        begun, mark = self._held.lstrip(), self._marks[0]
        if mark and begun.startswith(mark):
            self._held, self._read, self._fresh = begun[len(mark) :], self._thought, True
            return Delta()
        if mark and mark.startswith(begun) and not end:
            return None
        self._read = self._content
        self._fresh = False
        return Delta()

    def _thought(self, end: bool) -> Delta | None:
        text, mark, _ = self._held.partition(self._marks[1])
        if self._fresh and (text := text.lstrip()):
            self._held, self._fresh = self._held.lstrip(), False
        if mark:
            self._held, self._read = self._held.partition(mark)[2], self._content
            self._fresh = True
            return Delta(reasoning=text.rstrip())
        return (
            self._take(len(text.rstrip()) if end else _safe(self._held, self._marks[1]), "reasoning") if text else None
        )

    def _content(self, end: bool) -> Delta | None:
        if self._fresh:
            self._held = self._held.lstrip()
            self._fresh = not self._held
        if not self._held:
            return None
        if self._calls is None:
            return self._take(len(self._held), "content")
        mark = self._calls.start.strip()
        if not mark:
            begun = self._held.lstrip()
            if not begun:
                return None
            self._read, self._json = self._call if begun[0] in "[{" else self._verbatim, Brackets()
            return Delta()
        text, found, rest = self._held.partition(mark)
        if found:
            self._held, self._read, self._json = rest, self._call, Brackets()
            return Delta(content=text.rstrip())
        return self._take(len(self._held) if end else _safe(self._held, mark), "content")

    def _call(self, end: bool) -> Delta | None:
        """Behind the mark of a call: JSON, which is read when it is whole."""
        assert self._calls is not None
        until = self._json.end(self._held)
        if until is None and not end and BEGUN.match(self._held):
            return None
        found = None if until is None else _parsed(self._held[:until])
        calls = [self._made(each) for each in (found if isinstance(found, list) else [found])]
        self._read = self._behind
        made = tuple(call for call in calls if call is not None)
        if len(made) < len(calls) or not calls:  # not a call after all
            self._read = self._verbatim
            self._held = self._calls.start.strip() + self._held
            return Delta()
        self._held = self._held[until:]
        return Delta(calls=made)

    def _behind(self, end: bool) -> Delta | None:
        """Behind a call: the mark that ends it, where there is one, and then perhaps another call."""
        assert self._calls is not None
        begun, mark = self._held.lstrip().lstrip(";").lstrip(), self._calls.end.strip()
        if mark.startswith(begun) and begun != mark and not end:
            return None
        self._held, self._fresh = begun.removeprefix(mark), True
        self._read = self._content
        return Delta()

    def _made(self, found: Any) -> ToolCall | None:
        assert self._calls is not None
        if not isinstance(found, dict) or not isinstance(name := found.get(self._calls.name), str):
            return None
        given = found.get(self._calls.arguments, {})
        if not isinstance(given, dict | str):
            return None
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        return ToolCall(_whole(name), _whole(text), f"call_{token_hex(12)}")

    def _take(self, count: int, part: str) -> Delta | None:
        taken, self._held = self._held[:count], self._held[count:]
        return (Delta(reasoning=taken) if part == "reasoning" else Delta(taken)) if taken else None


def _parsed(text: str) -> Any:
    """Return what JSON says; None where it is none, is nested too deeply, or holds numbers that JSON does not have."""
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError):
        return None


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(text)
    return number


def _whole(text: str) -> str:
    """Return a text with halves of characters, which JSON can spell and nobody can send, as replacement characters."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _safe(text: str, mark: str) -> int:
    """Return how many characters can be no part of the mark, nor of the space before it."""
    part = next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)
    return len(text[: len(text) - part].rstrip())

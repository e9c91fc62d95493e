"""What a model writes, read by the marks of its template: thoughts, tool calls, and the rest, which is the answer.

It works on a stream. Joined, the parts are the same however the text was cut.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from gym_data.chat.answer_format import AnswerFormat
from gym_data.chat.call_forms import Call


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


class StepParser(ABC):
    """Reads one answer in steps: `_read` takes what it can from `_held`, and returns None where more has to come."""

    _read: Callable[[bool], Delta | None]
    _held = ""
    _fed = 0
    _thoughts: tuple[tuple[int, float], ...] = ()  #: from which character to which, their marks included

    @property
    @abstractmethod
    def _thinks(self) -> bool:
        """Whether what is read next is a thought."""

    def thought(self, place: int) -> bool:
        """Whether a character of what was written is of a thought or its marks; behind the last one, whether one goes on."""
        return any(start <= place < end for start, end in self._thoughts)

    def feed(self, text: str, end: bool = False) -> Delta:
        """Return what is known now that this was written; at the `end` nothing is held back."""
        self._held += text
        self._fed += len(text)
        found, at = Delta(), self._fed - len(self._held)
        while (step := self._read(end)) is not None:
            found += step
            at = self._note(at)
        if end:
            found += Delta(content="" if self._thinks else self._held)  # space behind a thought that is cut off
            self._held = ""
        return found

    def _note(self, before: int) -> int:
        """Note whether a step from a place began or ended a thought; return where it led."""
        place = self._fed - len(self._held)
        open_ = bool(self._thoughts) and self._thoughts[-1][1] == math.inf
        if self._thinks and not open_:
            self._thoughts += ((before, math.inf),)
        elif open_ and not self._thinks:
            self._thoughts = (*self._thoughts[:-1], (self._thoughts[-1][0], place))
        return place


class AnswerParser(StepParser):
    """Reads one answer. Text that may yet become a mark is held back until it is one, or is not."""

    def __init__(self, format: AnswerFormat, tools: Sequence[Mapping[str, Any]] | None, thoughts: bool = True) -> None:
        """Read what is written in a format; without `tools` or `thoughts`, marks of calls or of thoughts are text like any other.

        The tools are those on offer, as OpenAI's: in some forms their schemas say what an argument is.
        """
        self.format = format
        self._calls = format.calls if tools else None
        self._schemas = _schemas(tools or ())
        self._marks = (format.thought_start, format.thought_end) if thoughts and format.thought_start else ("", "")
        self._fresh = True  #: whether space is dropped, as nothing of this part was written
        begins = bool(self._marks[0]) and format.begins_thinking
        verbatim = self._calls is None and not self._marks[0]
        self._read = self._verbatim if verbatim else self._thought if begins else self._start
        self._note(0)

    @property
    def _thinks(self) -> bool:
        return self._read == self._thought

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
        mark = self._calls.mark
        if not mark:
            begun = self._held.lstrip()
            if not begun:
                return None
            self._read = self._calling("") if begun[0] in "[{" else self._verbatim
            return Delta()
        text, found, rest = self._held.partition(mark)
        if found:
            self._held, self._read = rest, self._calling(mark)
            return Delta(content=text.rstrip())
        return self._take(len(self._held) if end else _safe(self._held, mark), "content")

    def _calling(self, mark: str) -> Callable[[bool], Delta | None]:
        """Return what reads behind a mark: a call, which is told when it is whole."""
        assert self._calls is not None
        reader = self._calls.reader(self._schemas)

        def call(end: bool) -> Delta | None:
            found = reader.read(self._held, end)
            if found is None:
                return None
            if not found.calls:  # not a call after all
                self._held, self._read = mark + self._held, self._verbatim
                return Delta()
            self._held, self._read = self._held[found.until :], self._behind
            return Delta(calls=tuple(tool_call(each) for each in found.calls))

        return call

    def _behind(self, end: bool) -> Delta | None:
        """Behind a call: the mark that ends it, where there is one, and then perhaps another call."""
        assert self._calls is not None
        begun = self._held.lstrip().lstrip(";").lstrip()
        again, last = self._calls.again.strip(), self._calls.end.strip()
        if any(mark.startswith(begun) and begun != mark for mark in (again, last)) and not end:
            return None
        if again and begun.startswith(again):
            self._held, self._read = begun.removeprefix(again), self._calling(again)
            return Delta()
        self._held, self._fresh = begun.removeprefix(last), True
        self._read = self._content
        return Delta()

    def _take(self, count: int, part: str) -> Delta | None:
        taken, self._held = self._held[:count], self._held[count:]
        return (Delta(reasoning=taken) if part == "reasoning" else Delta(taken)) if taken else None


def tool_call(call: Call) -> ToolCall:
    """Return a call as clients get it."""
    return ToolCall(_whole(call.name), _whole(call.arguments), f"call_{token_hex(12)}")


def begun_of(mark: str, text: str) -> int:
    """Return how many last characters of a text may be the beginning of a mark."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)


def _schemas(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the schema of the arguments of each tool by its name."""
    functions = [tool.get("function", tool) for tool in tools]
    return {str(each.get("name")): each.get("parameters") or {} for each in functions if isinstance(each, Mapping)}


def _whole(text: str) -> str:
    """Return a text with halves of characters, which JSON can spell and nobody can send, as replacement characters."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _safe(text: str, mark: str) -> int:
    """Return how many characters can be no part of the mark, nor of the space before it."""
    return len(text[: len(text) - begun_of(mark, text)].rstrip())

"""What a model writes in channels, read message by message: thoughts, calls, and what is for the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gym_data.chat.answer_format import AnswerFormat
from gym_data.chat.answer_parser import AnswerParser, Delta, StepParser, begun_of, tool_call
from gym_data.chat.channels import CHANNEL, END, ENDS, MESSAGE, START, TO, ChannelReader, Header

HEADS = (START, CHANNEL, TO)  #: what a header begins with
LONGEST = 512  #: characters of a header


class ChannelParser(StepParser):
    """Reads one answer. What stands without a header is for the user, as where it goes on with what is there."""

    def __init__(self, format: AnswerFormat, tools: Sequence[Mapping[str, Any]] | None) -> None:
        """Begin; without `tools`, messages to functions are text like any other."""
        self._tools, self._reader = bool(tools), ChannelReader()
        self._part = ""  #: which a message is added to
        self._said = {"content": False, "reasoning": False}
        self._read = self._header

    @property
    def _thinks(self) -> bool:
        return self._read == self._body and self._part == "reasoning"

    def _header(self, end: bool) -> Delta | None:
        begun = self._held.lstrip()
        if not begun:
            return None
        head, found, body = begun.partition(MESSAGE)
        if not any(begun.startswith(mark) or (mark.startswith(begun) and not end) for mark in HEADS):
            self._read, self._part = self._body, "content"
            return Delta()
        if not found and not end and len(begun) < LONGEST:
            return None
        if not found:
            self._read, self._part = self._body, "content"
            return Delta()
        header = Header.of(head)
        if header.function and self._tools:
            self._read, self._reader = self._call, ChannelReader()
            return Delta()
        self._held = body
        self._read, self._part = self._body, "reasoning" if header.thought else "content"
        text = head + MESSAGE if header.function else "\n" * self._said[self._part]
        return self._added(text)

    def _body(self, end: bool) -> Delta | None:
        until = END.search(self._held)
        shown = (
            until.start()
            if until
            else len(self._held)
            if end
            else len(self._held) - max(begun_of(mark, self._held) for mark in ENDS)
        )
        text = self._held[:shown]
        self._said[self._part] |= bool(text)
        self._held = self._held[until.end() if until else shown :]
        if until:
            self._read = self._header
        return self._added(text) if text or until else None

    def _added(self, text: str) -> Delta:
        return Delta(reasoning=text) if self._part == "reasoning" else Delta(text)

    def _call(self, end: bool) -> Delta | None:
        """Read a message to a function, which is told when it is whole."""
        found = self._reader.read(self._held, end)
        if found is None:
            return None
        if not found.calls:  # not a call after all
            self._read, self._part = self._body, "content"
            return Delta()
        self._held, self._read = self._held[found.until :], self._header
        return Delta(calls=tuple(tool_call(each) for each in found.calls))


def parser_of(format: AnswerFormat, tools: Sequence[Mapping[str, Any]] | None) -> AnswerParser | ChannelParser:
    """Return what reads an answer in a format."""
    return ChannelParser(format, tools) if format.channels else AnswerParser(format, tools)

"""Answers in channels: messages with headers, which say whether they are thoughts, a call, or for the user.

It is the harmony format of gpt-oss (https://github.com/openai/harmony). A template shows but one of the orders in which a header
may name channel and recipient, so that this form is known and not found out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gym_data.chat.call_forms import Call, Function, Read, literal, parsed
from gym_data.chat.json_calls import GUIDED

CHANNEL, MESSAGE, START, CONSTRAIN = "<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"
ENDS = ("<|end|>", "<|return|>", "<|call|>")  #: of messages
FINAL, THOUGHTS = "final", "analysis"  #: names of channels
TO = "to=functions."
END = re.compile("|".join(map(re.escape, ENDS)))


@dataclass(frozen=True)
class ChannelCalls:
    """Calls as messages to a function."""

    tokens: tuple[tuple[str, int], ...] = ()  #: added tokens that stand in the marks, with their ids
    mark: str = CHANNEL
    again: str = ""
    end: str = ENDS[2]

    @property
    def marks(self) -> str:
        """All marks."""
        return "".join((CHANNEL, MESSAGE, START, CONSTRAIN, *ENDS))

    def with_tokens(self, tokens: tuple[tuple[str, int], ...]) -> ChannelCalls:
        """Return it with the tokens of a vocabulary."""
        return replace(self, tokens=tokens)

    def reader(self, schemas: Mapping[str, Mapping[str, Any]]) -> ChannelReader:
        """Return what reads a message to a function, from behind the mark."""
        return ChannelReader()

    def lark(self, functions: Sequence[Function]) -> str:
        """Return a grammar of one call; its end is left to the model, which ends the reply with it."""
        calls = [
            f"f{number}: {literal(f'{CHANNEL}commentary {TO}{name} {CONSTRAIN}json{MESSAGE}', self.tokens)} "
            f"%json {json.dumps({**schema, 'x-guidance': GUIDED})}"
            for number, (name, schema) in enumerate(functions)
        ]
        return "\n".join([f"start: {' | '.join(f'f{number}' for number in range(len(functions)))}", *calls, ""])


@dataclass(frozen=True)
class Header:
    """What a header says."""

    thought: bool
    function: str  #: who is called; empty where nobody is

    @classmethod
    def of(cls, text: str) -> Header:
        """Read what stands before `MESSAGE`."""
        function = re.search(rf"\b{re.escape(TO)}([\w.\-]+)", text)
        channel = re.search(rf"{re.escape(CHANNEL)}\s*(\w+)", text)
        return cls(bool(channel) and channel[1] == THOUGHTS, function[1] if function else "")  # type: ignore[index]


class ChannelReader:
    """Reads one message to a function, its header included."""

    def __init__(self) -> None:
        """Begin."""
        self._looked = 0

    def read(self, text: str, end: bool) -> Read | None:
        """Return the call; None where more has to come."""
        until = END.search(text, self._looked)
        if until is None and not end:
            self._looked = max(0, len(text) - max(map(len, ENDS)))
            return None
        head, _, given = (text[: until.start()] if until else text).partition(MESSAGE)
        function = Header.of(head).function
        if not function or not isinstance(parsed(given), dict):
            return Read(())
        return Read([Call(function, given.strip())], until.end() if until else len(text))


def in_channels(before_content: str) -> bool:
    """Whether a template has answers written so, by what it writes before what is for the user."""
    return before_content.endswith(f"{CHANNEL}{FINAL}{MESSAGE}")

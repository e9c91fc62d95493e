"""How a chat template has answers written: the marks around thoughts and around tool calls, and the keys of a call.

It is tried on answers that are easy to recognise. What a model writes is then read by the marks that it was trained with.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Protocol

from gym_data.chat.chat_rendering import ChatTemplateSpec, RenderRequest
from gym_data.chat.template_pool import WORKERS
from gym_data.rows import Message

ASKED: Message = {"role": "user", "content": "gymquestion"}
CONTENT, THOUGHT, NAME = "gymcontent", "gymthought", "gymfunction"
ARGUMENTS = {"gymargument": "gymvalue"}
DECODER = json.JSONDecoder()
_TAG = re.compile(r"(<[^<>\s]+>|\[[^\[\]\s]+\])\s*$")


@dataclass(frozen=True)
class CallFormat:
    """How a tool call is written: marks around JSON, which is one object for each call, or a list of them."""

    start: str  #: before the JSON, space included; none but space where an answer is a call by being such JSON
    end: str  #: behind it, space included
    name: str = "name"  #: key of the function's name
    arguments: str = "arguments"  #: key of its arguments
    listed: bool = False  #: whether calls are items of a list
    tokens: tuple[tuple[str, int], ...] = ()  #: added tokens that stand in the marks, with their ids


@dataclass(frozen=True)
class AnswerFormat:
    """How an answer is written."""

    calls: CallFormat | None = None  #: None where the template writes no calls, or none as JSON
    thought_start: str = ""  #: before thoughts; empty where the template knows none
    thought_end: str = ""  #: behind them
    begins_thinking: bool = False  #: whether the prompt has written `thought_start` already


Render = Callable[
    [Sequence[Message], bool], str
]  #: messages, and whether the text ends where the assistant is to write


def answer_format(render: Render) -> AnswerFormat:
    """Return how a template has answers written, by rendering some; what it refuses or leaves out is not there."""
    prompt = _try(render, [ASKED], True)
    before, content, behind = _answer(render, prompt, content=CONTENT).partition(CONTENT)
    if not content:
        return AnswerFormat()
    start, end = _thoughts(_answer(render, prompt, content=CONTENT, reasoning_content=THOUGHT))
    tag = _TAG.search(prompt)
    opened = tag[1] if tag and ((end and not start) or tag[1] == "<think>") else ""
    start = start or opened
    return AnswerFormat(_calls(render, prompt, before, behind), start, end or "</think>" * bool(start), bool(opened))


class Templated(Protocol):
    """A tokenizer as far as its templates tell how answers are written; `gym_data.tokenizer.Tokenizer` is one."""

    @property
    def templates(self) -> Mapping[str, str]:
        """Text of each chat template."""
        ...

    @property
    def template_spec(self) -> ChatTemplateSpec:
        """What chat templates are told."""
        ...

    @property
    def special(self) -> Sequence[str]:
        """The special tokens."""
        ...

    def token_id(self, token: str) -> int | None:
        """Return the id of one token, None where the vocabulary does not have it."""
        ...


def answer_format_of(tokenizer: Templated) -> AnswerFormat:
    """Return how the chat template of a tokenizer has answers written; a tokenizer without one has them as they come."""
    if "default" not in tokenizer.templates:
        return AnswerFormat()

    def render(messages: Sequence[Message], generation_prompt: bool) -> str:
        request = RenderRequest(messages, prompt=generation_prompt)
        return WORKERS.chat(tokenizer.template_spec, request).sequences[0].text

    found = answer_format(render)
    if found.calls is None:
        return found
    marks = found.calls.start + found.calls.end
    added = [*tokenizer.special, *tokenizer.template_spec.further]
    ids = [(token, tokenizer.token_id(token)) for token in added if token in marks]
    return replace(found, calls=replace(found.calls, tokens=tuple((token, id) for token, id in ids if id is not None)))


def _thoughts(answer: str) -> tuple[str, str]:
    """Return the marks around the thought of an answer, without the space around them."""
    before, thought, rest = answer.partition(THOUGHT)
    end, content, _ = rest.partition(CONTENT)
    return (before.strip(), end.strip()) if thought and content else ("", "")


def _calls(render: Render, prompt: str, before: str, behind: str) -> CallFormat | None:
    """Return how calls are written; None where no JSON holds them."""
    call = {"type": "function", "id": "abcdefghi", "function": {"name": NAME, "arguments": ARGUMENTS}}
    written = _answer(render, prompt, content="", tool_calls=[call])
    for found, at, until in _json(written):
        listed = isinstance(found, list)
        keys = _keys(found[0] if listed and found else found)
        if keys:
            start, end = written[:at].removeprefix(before), written[until:].removesuffix(behind)
            return CallFormat(start, end, *keys, listed)
    return None


def _json(text: str) -> Iterator[tuple[Any, int, int]]:
    """Yield what is JSON in a text, outermost first, with where it begins and ends."""
    for at, sign in enumerate(text):
        if sign in "[{":
            try:
                found, until = DECODER.raw_decode(text, at)
            except ValueError:
                continue
            yield found, at, until


def _keys(call: Any) -> tuple[str, str] | None:
    """Return under which keys an object holds the name and the arguments of the call that is tried."""
    if not isinstance(call, dict):
        return None
    name = next((key for key, value in call.items() if value == NAME), None)
    arguments = next((key for key, value in call.items() if value in (ARGUMENTS, json.dumps(ARGUMENTS))), None)
    return (name, arguments) if name is not None and arguments is not None else None


def _answer(render: Render, prompt: str, **message: Any) -> str:
    """Return what an answer adds to the prompt."""
    whole = _try(render, [ASKED, {"role": "assistant", **message}], False)
    same = takewhile(lambda pair: pair[0] == pair[1], zip(prompt, whole, strict=False))
    return whole[sum(1 for _ in same) :]


def _try(render: Render, messages: Sequence[Message], generation_prompt: bool) -> str:
    try:
        return render(messages, generation_prompt)
    except ValueError:
        return ""

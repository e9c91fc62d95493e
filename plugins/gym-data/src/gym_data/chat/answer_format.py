"""How a chat template has answers written: the marks around thoughts, and the form of tool calls.

It is tried on answers that are easy to recognise. What a model writes is then read by the marks that it was trained with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Protocol

from gym_data.chat.call_forms import CallForm, Writes
from gym_data.chat.channels import ChannelCalls, in_channels
from gym_data.chat.chat_rendering import ChatTemplateSpec, RenderRequest
from gym_data.chat.json_calls import json_calls
from gym_data.chat.named_calls import named_calls
from gym_data.chat.tagged_calls import tagged_calls
from gym_data.chat.template_pool import WORKERS
from gym_data.rows import Message

ASKED: Message = {"role": "user", "content": "gymquestion"}
CONTENT, THOUGHT = "gymcontent", "gymthought"
FORMS: Sequence[Callable[[Writes], CallForm | None]] = (
    json_calls,
    named_calls,
    tagged_calls,
)  #: of calls, first tried first
_TAG = re.compile(r"(<[^<>/\s][^<>\s]*>|\[[^\[\]/\s][^\[\]\s]*\])\s*$")  #: that opens


@dataclass(frozen=True)
class AnswerFormat:
    """How an answer is written."""

    calls: CallForm | None = None  #: None where the template writes no calls, or none in a form of `FORMS`
    thought_start: str = ""  #: before thoughts; empty where the template knows none
    thought_end: str = ""  #: behind them
    begins_thinking: bool = False  #: whether the prompt has written `thought_start` already
    channels: bool = False
    """Whether thoughts, calls and the rest are messages with headers, see `gym_data.chat.channels`."""
    thought_over: bool = False  #: whether the prompt holds the thought of the answer, as one with nothing in it
    tokens: tuple[tuple[str, int], ...] = ()  #: added tokens that stand in the marks around thoughts, with their ids


#: Messages, and whether the text ends where the assistant is to write.
Render = Callable[[Sequence[Message], bool], str]


def answer_format(render: Render) -> AnswerFormat:
    """Return how a template has answers written, by rendering some; what it refuses or leaves out is not there."""
    prompt = _try(render, [ASKED], True)
    before, content, behind = _answer(render, prompt, content=CONTENT).partition(CONTENT)
    if not content:
        return AnswerFormat()
    if in_channels(before):
        return AnswerFormat(ChannelCalls(), channels=True)
    start, end = _thoughts(_answer(render, prompt, content=CONTENT, reasoning_content=THOUGHT))
    tag = _TAG.search(prompt)
    opened = tag[1] if tag and ((end and not start) or tag[1] == "<think>") else ""
    start = start or opened
    end = end or "</think>" * bool(start)
    return AnswerFormat(_calls(render, prompt, before, behind, end), start, end, bool(opened))


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


def answer_format_of(tokenizer: Templated, values: Mapping[str, Any] | None = None) -> AnswerFormat:
    """Return how the chat template of a tokenizer has answers written; a tokenizer without one has them as they come.

    `values` are what the template is handed besides: they may have the prompt begin a thought, or not.
    """
    if "default" not in tokenizer.templates:
        return AnswerFormat()
    found = answer_format(_rendering(tokenizer, {}))
    if values:
        told = answer_format(_rendering(tokenizer, values))
        marks = found if found.thought_start else told
        found = replace(
            found,
            thought_start=marks.thought_start,
            thought_end=marks.thought_end,
            begins_thinking=told.begins_thinking,
            thought_over=bool(told.thought_end) and not told.thought_start,
        )
    found = replace(found, tokens=_tokens_in(found.thought_start + found.thought_end, tokenizer))
    calls = found.calls and found.calls.with_tokens(_tokens_in(found.calls.marks, tokenizer))
    return replace(found, calls=calls)


def values_read(tokenizer: Templated) -> frozenset[str]:
    """Return the names of the values that the chat template of a tokenizer reads, such as `enable_thinking`; none of one that
    cannot be read.
    """
    try:
        return frozenset(WORKERS.reads(tokenizer.template_spec)) if tokenizer.templates else frozenset()
    except ValueError:
        return frozenset()


def _tokens_in(marks: str, tokenizer: Templated) -> tuple[tuple[str, int], ...]:
    """Return the added tokens of which marks consist, with their ids."""
    added = [*tokenizer.special, *tokenizer.template_spec.further]
    ids = [(token, tokenizer.token_id(token)) for token in added if token in marks]
    return tuple((token, id) for token, id in ids if id is not None)


def _rendering(tokenizer: Templated, values: Mapping[str, Any]) -> Render:
    def render(messages: Sequence[Message], generation_prompt: bool) -> str:
        request = RenderRequest(messages, prompt=generation_prompt, values=values)
        return WORKERS.chat(tokenizer.template_spec, request).sequences[0].text

    return render


def _thoughts(answer: str) -> tuple[str, str]:
    """Return the marks around the thought of an answer, without the space around them."""
    before, thought, rest = answer.partition(THOUGHT)
    end, content, _ = rest.partition(CONTENT)
    return (before.strip(), end.strip()) if thought and content else ("", "")


def _calls(render: Render, prompt: str, before: str, behind: str, thought_end: str) -> CallForm | None:
    """Return how calls are written; None where that is no form that is known."""

    def writes(names: Sequence[str], arguments: Mapping[str, Any]) -> str:
        calls = [
            {"type": "function", "id": f"abcdefgh{at}", "function": {"name": name, "arguments": arguments}}
            for at, name in enumerate(names)
        ]
        written = _answer(render, prompt, content="", tool_calls=calls).removeprefix(before).removesuffix(behind)
        return written.rpartition(thought_end)[2] if thought_end else written

    found = (form(writes) for form in FORMS)
    return next((each for each in found if each is not None), None)


def _answer(render: Render, prompt: str, **message: Any) -> str:
    """Return what an answer adds to the prompt."""
    whole = _try(render, [ASKED, {"role": "assistant", **message}], False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, whole, strict=False)))
    tag = prompt.rfind("<", 0, same)
    return whole[tag if tag > prompt.rfind(">", 0, same) else same :]  # two tags that begin alike are two


def _try(render: Render, messages: Sequence[Message], generation_prompt: bool) -> str:
    try:
        return render(messages, generation_prompt)
    except ValueError:
        return ""

"""What a task is, how an answer is checked, and which split a task belongs to. Knows no kind of task."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Split = Literal["train", "heldout"]
HELDOUT_SHARE = 0.2

_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


@dataclass(frozen=True)
class Task:
    """A prompt with one checkable answer.

    `key` is the content that decides the split, such as the operands of a sum in any wording. `note` states
    it as a plain sentence, for the corpus; `wrong` is a plausible mistake, for preference pairs.
    """

    kind: str
    skill: str
    key: str
    phrasing: int
    messages: tuple[dict[str, Any], ...]
    answer: str
    wrong: str
    note: str
    tools: tuple[dict[str, Any], ...] = ()

    @property
    def id(self) -> str:
        """Content identity: equal for equal prompts, whatever the seed or the index."""
        text = json.dumps([self.messages, self.tools, self.answer], sort_keys=True)
        return f"{self.kind}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    @property
    def split(self) -> Split:
        """The split that the content falls into."""
        return split_of(self.key)

    def check(self, completion: str) -> bool:
        """True where `completion` gives the answer: same words, or same tool calls with the same arguments.

        Reasoning in a `<think>` block, outer blanks and one closing full stop do not count.
        """
        return _content(completion) == _content(self.answer)

    def row(self, answer: str | None = None) -> dict[str, Any]:
        """The OpenAI-style row, answered rightly or with `answer`."""
        turn = assistant_turn(self.answer if answer is None else answer)
        row: dict[str, Any] = {"messages": [*self.messages, turn]}
        if self.tools:
            row["tools"] = list(self.tools)
        return row


def split_of(key: str) -> Split:
    """The split of a content, from its hash alone."""
    digest = hashlib.sha256(key.encode()).digest()
    return "heldout" if digest[0] < HELDOUT_SHARE * 256 else "train"


def user(text: str) -> tuple[dict[str, Any], ...]:
    """A conversation of one user turn."""
    return ({"role": "user", "content": text},)


def call_text(name: str, arguments: dict[str, Any]) -> str:
    """A tool call as the model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def assistant_turn(answer: str) -> dict[str, Any]:
    """The assistant message that says `answer`; tool calls become `tool_calls` with JSON text arguments."""
    calls = _calls(answer)
    if not calls:
        return {"role": "assistant", "content": answer}
    functions = [{"name": call["name"], "arguments": json.dumps(call["arguments"])} for call in calls]
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": function} for function in functions],
    }


def listing(items: Iterable[object]) -> str:
    """Items between commas."""
    return ", ".join(str(item) for item in items)


def _calls(text: str) -> list[dict[str, Any]]:
    return [json.loads(body) for body in _CALL.findall(text)]


def _content(text: str) -> object:
    said = _THOUGHT.sub("", text).strip()
    if "<tool_call>" in said:
        try:
            return _calls(said) or said
        except ValueError:
            return said
    return said.removesuffix(".").strip()

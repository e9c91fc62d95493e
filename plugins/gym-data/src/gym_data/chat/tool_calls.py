"""How a chat template wants tool calls written: arguments as an object or as JSON text, no content as "" or as nothing.

OpenAI writes arguments as text, transformers as an object. Some templates take only one of them, and write the other wrongly
without a word: it is tried on a call that is easy to recognise.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gym_data.chat.template_omissions import arguments
from gym_data.rows import Message

NAME, KEY, VALUE = "gymfunction", "gymargument", "gymvalue"
AS_TEXT = json.dumps({KEY: VALUE})


@dataclass(frozen=True)
class Calls:
    """What a template takes."""

    objects: bool = True  #: arguments as objects
    texts: bool = False  #: arguments as JSON text
    nothing: str | None = ""  #: content of a message that only calls

    def written(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages whose tool calls the template shows; arguments stay as they are where it takes them so."""
        return [self._message(message) if message.get("tool_calls") else message for message in messages]

    def _message(self, message: Message) -> Message:
        calls = [
            {**call, "function": {**call["function"], "arguments": self._arguments(call["function"])}}
            for call in message["tool_calls"]
        ]
        return {**message, "content": message["content"] or self.nothing, "tool_calls": calls}

    def _arguments(self, function: dict[str, Any]) -> Any:
        given = function["arguments"]
        if isinstance(given, str):
            return given if self.texts else arguments(function)
        return given if self.objects or not self.texts else json.dumps(given, ensure_ascii=False)


def calls_of_template(render: Callable[[Sequence[Message]], str]) -> Calls:
    """Return what a template takes, by rendering calls; what none of them tells stays as usual."""
    for nothing in ("", None):
        known = Calls(objects=False, nothing=nothing)
        shown = _try(render, {KEY: VALUE}, nothing)
        known = replace(known, objects=KEY in shown and VALUE in shown and repr({KEY: VALUE}) not in shown)
        known = replace(known, texts=AS_TEXT in _try(render, AS_TEXT, nothing))
        if known.objects or known.texts:
            return known
    return Calls()


def _try(render: Callable[[Sequence[Message]], str], given: Any, nothing: str | None) -> str:
    function = {"name": NAME, "arguments": given}
    asked: Message = {"role": "user", "content": "a"}
    called: Message = {
        "role": "assistant",
        "content": nothing,
        "tool_calls": [{"type": "function", "id": "abcdefghi", "function": function}],
    }
    try:
        shown = render([asked, called])
    except ValueError:
        return ""
    return shown if NAME in shown else ""

"""What a model answered, as it is read from a reply, or why there is nothing to keep."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gym_training_free.endpoint.ledger import Usage
from gym_training_free.endpoint.usage import counted

BROKEN = ("error", "abort")  #: reasons of the end of half a reply, told with status 200
CUT = ("length", "content_filter")  #: reasons of an end that is not the model's


@dataclass(frozen=True)
class ToolCall:
    """What a model wants a tool to do."""

    id: str
    name: str
    arguments: str  #: JSON, as the model wrote it


@dataclass(frozen=True)
class ChatReply:
    """What a model answered."""

    text: str
    tool_calls: Sequence[ToolCall] = ()
    finished: bool = True  #: whether the model ended it, rather than the limit of its length
    usage: Usage | None = None  #: None where the server does not say

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data, without its usage."""
        return {"text": self.text, "tool_calls": [vars(call) for call in self.tool_calls], "finished": self.finished}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> ChatReply:
        """Return what `to_json` gave."""
        return cls(found["text"], [ToolCall(**call) for call in found["tool_calls"]], found["finished"])


class Failed(Exception):
    """A request that brought no reply to keep."""

    def __init__(
        self,
        why: str,
        *,
        passing: bool,
        counted: bool,
        wait: float | None = None,
        parameter: str = "",
        away: bool = False,
    ) -> None:
        """Say why, whether it may pass, whether the server may have counted tokens, how long it asks to wait, what it refused.

        `parameter` is one of LEAVABLE, where the server names it; `away` says that whatever is asked would have failed.
        """
        super().__init__(why)
        self.passing, self.counted, self.wait, self.parameter, self.away = passing, counted, wait, parameter, away


def completion(found: Any) -> ChatReply:
    """Return what a chat completion says, as plain data. Raises Failed where it is none, or half of one."""
    try:
        choice = found["choices"][0]
        message, reason = choice["message"], choice.get("finish_reason")
        calls = [_call(one) for one in message.get("tool_calls") or ()]
        # Half a pair of surrogates is no text: no file takes it.
        text = _text(message.get("content")).encode("utf-8", "replace").decode()
    except (KeyError, IndexError, TypeError, AttributeError):
        said = json.dumps(found, ensure_ascii=False)[:200]
        raise Failed(f"replied with JSON that is no chat completion: {said!r}", passing=True, counted=True) from None
    if reason in BROKEN:
        raise Failed(f"broke its reply off: {reason}", passing=True, counted=True)
    return ChatReply(text, calls, reason not in CUT, counted(found, "completion_tokens"))


def _call(found: Mapping[str, Any]) -> ToolCall:
    function = found["function"]
    given = function.get("arguments") or "{}"
    arguments = given if isinstance(given, str) else json.dumps(given)  # some servers send the object itself
    return ToolCall(str(found.get("id") or ""), str(function["name"]), arguments)


def _text(content: Any) -> str:
    """Return the text of a message, also of one in parts; what a model thought is none. Raises TypeError and KeyError."""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    return "".join([part["text"] for part in parts if part["type"] == "text"])

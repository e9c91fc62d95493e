"""Rows of the second version: contents are lists of parts, and each message says how much it is learnt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from gym_data.formats import Messages, Preference
from gym_data.formats.parsing import load_json, text_of
from gym_data.kinds import Format


class Rows(Format):
    """LLaMA-Factory's rows of version 1: `messages`, or `chosen_messages` and `rejected_messages`, or what a converter reads."""

    target: ClassVar[str] = "gym_llamafactory.v1.rows:RowReader"
    example: ClassVar[Mapping[str, Any]] = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "value": "2 + 2?"}], "loss_weight": 0.0},
            {"role": "assistant", "content": [{"type": "text", "value": "Four."}], "loss_weight": 1.0},
        ]
    }

    converter: Literal["alpaca", "sharegpt", "pair"] | None = None
    """What turns other rows into these."""


class RowReader:
    """Makes a conversation, or a pair, of a row."""

    def __init__(self, config: Rows) -> None:
        """Read what is left as OpenAI's messages are read."""
        self._converted = _CONVERTERS[config.converter]
        self._conversation = Messages().build()
        self._pair = Preference(prompt=Messages()).build()

    def convert(self, row: Mapping[str, Any]) -> Any:
        """Return the conversation or the pair. Raises ValueError where it cannot be trained on."""
        told = self._converted(row)
        tools = {"tools": row["tools"]} if row.get("tools") else {}
        if "chosen_messages" in told:
            sides = {name: _plain(told.get(f"{name}_messages")) for name in ("chosen", "rejected")}
            return self._pair.convert(sides | tools)
        return self._conversation.convert({"messages": _plain(told.get("messages"))} | tools)


def _plain(messages: Any) -> list[dict[str, Any]]:
    """Return messages with their contents as text, and calls apart."""
    return [_message(each) for each in _listed(messages)]


def _listed(messages: Any) -> Sequence[Mapping[str, Any]]:
    """Return what is a list of objects. Raises ValueError for all else."""
    if not isinstance(messages, list) or not all(isinstance(each, Mapping) for each in messages):
        raise ValueError("there is no list of messages")
    return messages


def _message(given: Mapping[str, Any]) -> dict[str, Any]:
    weight = given.get("loss_weight", 1.0)
    if weight not in (0, 1):
        raise ValueError(f"a message is learnt or not: its loss_weight is {weight}")
    content = given.get("content")
    parts: list[Any] = content if isinstance(content, list) else [{"type": "text", "value": content}]
    found: dict[str, list[str]] = {"text": [], "reasoning": [], "tool_call": [], "image_url": []}
    shown: list[dict[str, str]] = []
    for part in parts:
        kind = str(part.get("type") if isinstance(part, Mapping) else part)
        if kind not in found:
            raise ValueError(f"it has a part `{kind}`; audio and video are not read")
        found[kind].append(text_of(part.get("value"), f"the value of a part `{kind}`"))
        shown += [{"type": kind, kind: found[kind][-1]}] if kind in ("text", "image_url") else []
    content = shown if found["image_url"] else "".join(found["text"])
    made: dict[str, Any] = {"role": given.get("role"), "content": content, "train": weight != 0}
    made |= {"reasoning_content": "".join(found["reasoning"])} if found["reasoning"] else {}
    calls = [load_json(call, "a tool call") for call in found["tool_call"]]
    return made | ({"tool_calls": [{"type": "function", "function": call} for call in calls]} if calls else {})


def _text(role: str, text: Any, learnt: bool = False) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "value": text}], "loss_weight": float(learnt)}


def _no_media(row: Mapping[str, Any]) -> None:
    name = next((name for name in ("images", "videos", "audios") if row.get(name)), "")
    if name:
        raise ValueError(f"it has {name}, and images, audio and video are not read")


def _as_is(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return row


def _alpaca(row: Mapping[str, Any]) -> Mapping[str, Any]:
    _no_media(row)
    # Nothing stands between them, other than in version 0.
    asked = "".join(text_of(row.get(name) or "", f"column `{name}`") for name in ("instruction", "input"))
    system = [_text("system", row["system"])] if row.get("system") else []
    return {"messages": [*system, _text("user", asked), _text("assistant", row.get("output"), learnt=True)]}


_ROLES = {"system": "system", "human": "user", "gpt": "assistant", "observation": "tool", "function_call": "assistant"}


def _sharegpt(row: Mapping[str, Any]) -> Mapping[str, Any]:
    _no_media(row)
    messages = []
    for each in _listed(row.get("conversations")):
        told, said = str(each.get("from")), each.get("value")
        if told not in _ROLES:
            raise ValueError(f"a message is from `{told}`, which is none of {', '.join(_ROLES)}")
        role = _ROLES[told]
        made = _text(role, said, learnt=role == "assistant")
        if told == "function_call":
            calls = load_json(text_of(said, "a tool call"), "a tool call")
            several: Sequence[Any] = calls if isinstance(calls, list) else [calls]
            made["content"] = [{"type": "tool_call", "value": json.dumps(call)} for call in several]
        messages.append(made)
    return {"messages": messages}


def _pair(row: Mapping[str, Any]) -> Mapping[str, Any]:
    _no_media(row)
    sides = {}
    for name in ("chosen", "rejected"):
        sides[f"{name}_messages"] = [
            _text(each.get("role", ""), each.get("content"), each.get("role") == "assistant")
            for each in _listed(row.get(name))
        ]
    return sides


_CONVERTERS = {None: _as_is, "alpaca": _alpaca, "sharegpt": _sharegpt, "pair": _pair}

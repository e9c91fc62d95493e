"""Reading the parts that several formats share: text, tools, tool calls. A ValueError says what is wrong with a row."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from gym_data.rows import MARKS, Message

_SURROGATE = re.compile("[\ud800-\udfff]")
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
#: What ends thoughts in a text, by the templates that have it written so: most, Gemma 4, Seed-OSS, Kimi-VL, gpt-oss.
THOUGHTS_ENDS = (
    "</think>",
    "<channel|>",
    "</seed:think>",
    "◁/think▷",
    "<|end|><|start|>assistant<|channel|>final<|message|>",
)
EMPTY = "an answer is empty"
IMAGES = (".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".tiff")
SUFFIXES = (*IMAGES, ".mp4", ".avi", ".mov", ".mkv", ".webm", ".wav", ".mp3", ".flac", ".ogg", ".m4a")


class UntrainableRowError(ValueError):
    """A row that is as it should be, but has nothing to learn: an empty answer, or two that are the same."""

    def __init__(self, reason: str, why: str = "") -> None:
        """Take the reason that such rows are counted by, and what is to be said of this one, if more."""
        super().__init__(why or reason)
        self.reason = reason


def column(row: Mapping[str, Any], name: str | None) -> Any:
    """Return the value of a column; None where the format has no such column, or the row no such value."""
    return row.get(name) if name is not None else None


def text_of(value: Any, what: str) -> str:
    """Return a text, or the joined text parts of OpenAI's content list. Raises ValueError for anything else."""
    if isinstance(value, str):
        if not value.isascii() and _SURROGATE.search(value):
            raise ValueError(f"{what} holds a lone surrogate, which is no text")
        return value
    if isinstance(value, list):
        parts = []
        for part in value:
            if not isinstance(part, Mapping) or part.get("type", "text") != "text":
                raise ValueError(f"{what} holds more than text")
            parts.append(text_of(part.get("text"), what))
        return "".join(parts)
    if value is None:
        raise ValueError(f"{what} is missing")
    raise ValueError(f"{what} is not text but {type(value).__name__}")


def filled(value: Any, what: str) -> str:
    """Return a text that is not blank."""
    text = text_of(value, what)
    if not text.strip():
        raise ValueError(f"{what} is empty")
    return text


def no_marked_media(row: Mapping[str, Any]) -> None:
    """Raise ValueError for a row without media whose text has a place for one, and a column the file for it."""
    for name, value in row.items():
        files = value if isinstance(value, list) else [value]
        named = files and all(isinstance(each, str) and each.lower().endswith(SUFFIXES) for each in files)
        if named and any(mark in str(row) for mark in MARKS):
            raise ValueError(f"it has {name}, and column `{name}` is not said to hold images, videos or sounds")


def tools_of(value: Any) -> tuple[dict[str, Any], ...]:
    """Return the tools on offer as OpenAI function descriptions, from a list or its JSON text."""
    if value is None or value == "":
        return ()
    listed = load_json(value, "the tools") if isinstance(value, str) else value
    tools = []
    for tool in listed if isinstance(listed, list) else [listed]:
        if not isinstance(tool, Mapping):
            raise ValueError("the tools are not a list of function descriptions")
        bare = "function" not in tool
        function = tool if bare else tool["function"]
        if not isinstance(function, Mapping) or not function.get("name"):
            raise ValueError("a tool has no name")
        tools.append({"type": "function", "function": function} if bare else dict(tool))
    return tuple(tools)


def values_of(value: Any, what: str) -> dict[str, Any]:
    """Return values by name, from an object or its JSON text; null, with which tables fill up, is none."""
    given = load_json(value, what) if isinstance(value, str) and value else value or {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ValueError(f"{what} holds no object")
    return {name: each for name, each in given.items() if each is not None}


def calls_of(value: Any) -> list[dict[str, Any]]:
    """Return tool calls as OpenAI writes them; from a list, one call, or JSON text.

    Arguments stay an object or the JSON text of one, as they were: a chat template is given what it takes
    (`gym_data.chat.tool_calls`).
    """
    listed = load_json(value, "a tool call") if isinstance(value, str) else value
    calls = []
    for call in listed if isinstance(listed, list) else [listed]:
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ValueError("a tool call has no name")
        arguments = function.get("arguments") or {}
        what = f"the arguments of the tool call `{function['name']}`"
        if not isinstance(load_json(arguments, what) if isinstance(arguments, str) else arguments, Mapping):
            raise ValueError(f"{what} are not an object")
        identity = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
        calls.append({"type": "function", **identity, "function": {"name": function["name"], "arguments": arguments}})
    return calls


def said_and_called(text: str) -> tuple[str, list[dict[str, Any]]]:
    """Return what a text says before a tool call, its thoughts, and the calls: JSON, or JSON in `<tool_call>` marks."""
    if text.lstrip()[:1] in ("{", "["):
        return "", calls_of(text)
    end = min((end for end in THOUGHTS_ENDS if end in text), key=text.index, default="")
    thoughts, _, rest = text.partition(end) if end else ("", "", text)
    marked = _CALL.findall(rest)
    call = rest.lstrip()
    said = thoughts + end + (_CALL.sub("", rest) if marked else rest[: len(rest) - len(call)])
    return said if said.strip() else "", [each for part in marked or [call] for each in calls_of(part)]


def load_json(text: str, what: str) -> Any:
    """Parse JSON text. Raises ValueError that says what is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is not JSON: {str(error)[:80]}") from None


def check(messages: tuple[Message, ...], answered: bool) -> None:
    """Raise ValueError unless the messages take turns as chat templates expect, and end with an answer (or a prompt).

    It is UntrainableRowError where all that is wrong is that the last answer is empty. The order is: perhaps a system message,
    then user and assistant in turns; results of tools stand between two answers, of which the first called.
    """
    if not messages:
        raise ValueError("there are no messages")
    before = None
    for number, message in enumerate(messages, 1):
        role = message["role"]
        what = f"message {number} ({role})"
        if role == "system" and number > 1:
            raise ValueError(f"{what} is not at the beginning")
        if role == "user" and before == "user":
            raise ValueError(f"{what} follows another user message")
        if role == "tool" and before not in ("assistant", "tool"):  # a call may stand in the text of an answer
            raise ValueError(f"{what} is the result of no tool call")
        if role == "assistant" and before not in ("user", "tool"):
            raise ValueError(f"{what} answers no user message")
        if role == "user" and before == "tool":
            raise ValueError(f"{what} follows a tool result that was not answered")
        if not message["content"].strip() and role != "tool" and not message.get("tool_calls"):
            if role == "assistant" and number == len(messages):
                raise UntrainableRowError(EMPTY, f"{what} is empty")
            raise ValueError(f"{what} is empty")
        before = role
    if answered and before != "assistant":
        raise ValueError(f"it ends with a message of the {before}, not with an answer")
    if not answered and before not in ("user", "tool"):
        raise ValueError("the prompt ends with an answer already")

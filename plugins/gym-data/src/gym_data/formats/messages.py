"""Rows that hold a list of messages: ShareGPT's and OpenAI's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_data.formats import ConversationFormat
from gym_data.formats.media import check_answers, content_of, media_of, placed_media
from gym_data.formats.parsing import (
    calls_of,
    check,
    column,
    load_json,
    said_and_called,
    text_of,
    tools_of,
    values_of,
)
from gym_data.rows import Conversation, Message, Named

OTHER_NAMES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
    "tool": "tool",
    "observation": "tool",
    "function": "tool",  # OpenAI's, before `tool`
    "function_call": "call",
}
CALLS = ("tool_calls", "function_call")  #: of an answer: OpenAI's list, and the one call of before it
READ = ("role", "content", *CALLS, "train", "weight")


class ConversationReader:
    """Makes a conversation of a row."""

    def __init__(self, config: ConversationFormat) -> None:
        """Hold the column and role names; the usual names of the roles are understood beside the configured ones."""
        self.config = config
        self._roles = OTHER_NAMES | {
            config.user: "user",
            config.assistant: "assistant",
            config.system_role: "system",
            config.observation: "tool",
            config.function: "call",
        }

    def convert(self, row: Mapping[str, Any]) -> Conversation:
        """Return the conversation. Raises ValueError where roles, order or contents cannot be trained on."""
        read = self.read(row)
        check(read.messages, answered=True)
        return read

    def prompt(self, row: Mapping[str, Any]) -> Conversation:
        """Return the conversation of a row that keeps its answers elsewhere."""
        read = self.read(row)
        check(read.messages, answered=False)
        return read

    def asked(self, row: Mapping[str, Any]) -> tuple[Conversation, str]:
        """Return the conversation of a row without the answers that it may end with, and the last of these."""
        whole = self.read(row)
        check(whole.unanswered.messages, answered=False)
        return whole.unanswered, whole.answer

    def message(self, raw: Any, what: str) -> Message:
        """Return one answer that stands in a column of its own: a message or its text."""
        if isinstance(raw, str):
            return {"role": "assistant", "content": raw}
        if not isinstance(raw, Mapping):
            raise ValueError(f"{what} is missing" if raw is None else f"{what} is not a message")
        own: list[Named] = []
        message = self._message(raw, what, own)
        check_answers([message], {each.medium for each in own if each.value is not None})
        return message

    def read(self, row: Mapping[str, Any]) -> Conversation:
        """Return the messages of a row as they are, in whatever order. Raises ValueError where they are no messages."""
        config = self.config
        messages: list[Message] = []
        muted: set[int] = set()
        own: list[Named] = []  # of each mark of a medium in the messages, what stands there, or None
        self._take(row.get(config.messages), config.messages, messages, muted, own)
        begun = bool(messages) and messages[0]["role"] == "system"
        if not begun and (system := column(row, config.system)):
            messages.insert(0, {"role": "system", "content": text_of(system, "the system message")})
            muted = {index + 1 for index in muted}
        if config.completion is not None:
            muted.update(index for index, message in enumerate(messages) if message["role"] == "assistant")
            answer = row.get(config.completion)
            if isinstance(answer, str | Mapping):
                messages.append(self.message(answer, f"the answer (column `{config.completion}`)"))
            else:
                self._take(answer, config.completion, messages, muted, own)
        values = values_of(column(row, config.chat_template_kwargs), f"column `{config.chat_template_kwargs}`")
        messages, media = placed_media(messages, own, media_of(row, config.media))
        return Conversation(tuple(messages), tools_of(column(row, config.tools)), frozenset(muted), values, media)

    def _take(self, raw: Any, name: str, messages: list[Message], muted: set[int], own: list[Named]) -> None:
        """Add the messages of a column, and what stands for media in them."""
        if isinstance(raw, str):  # a cell of a table
            raw = load_json(raw, f"column `{name}`")
        if not isinstance(raw, list):
            raise ValueError(f"column `{name}` holds no list of messages")
        for number, entry in enumerate(raw, 1):
            what = f"message {number}"
            if not isinstance(entry, Mapping):
                raise ValueError(f"{what} is not an object")
            message = self._message(entry, what, own)
            if message["role"] == "assistant" and not _learnt(entry, what):
                muted.add(len(messages))
            messages.append(message)

    def _message(self, entry: Mapping[str, Any], what: str, own: list[Named]) -> Message:
        given = entry.get(self.config.role)
        if given is None:
            raise ValueError(f"{what} has no role (key `{self.config.role}`)")
        role = self._roles.get(given) if isinstance(given, str) else None
        if role is None:
            raise ValueError(
                f"{what} has the unknown role {given!r} (the format's options `user`, `assistant`... name others)"
            )
        content = entry.get(self.config.content)
        # As in transformers a chat template is given the other keys too (thoughts, names...), and what it leaves out is counted.
        read = (*READ, self.config.role, self.config.content)
        kept = {key: value for key, value in entry.items() if key not in read and value is not None}
        if role == "call":
            said, called = said_and_called(text_of(content, what))
            return {"role": "assistant", "content": said, **kept, "tool_calls": called}
        calls = next((entry[key] for key in CALLS if entry.get(key)), None) if role == "assistant" else None
        if calls:
            return {
                "role": role,
                "content": "" if content is None else text_of(content, what),
                **kept,
                "tool_calls": calls_of(calls),
            }
        text, found = content_of(content, f"the content of {what}")
        own += found
        return {"role": role, "content": text, **kept}


def _learnt(entry: Mapping[str, Any], what: str) -> bool:
    """Return whether an answer is to be learnt. Raises ValueError where it says neither yes nor no, such as half."""
    said = {key: entry.get(key) for key in ("train", "weight")}
    for key, value in said.items():
        if value not in (None, False, True):  # 0 and 1 are the same, as in tables
            raise ValueError(f"`{key}` of {what} is {value!r}, neither true nor false")
    return all(value in (None, True) for value in said.values())

"""What a chat template leaves out of the messages it was given: text of the user's that would train nothing.

Templates drop thoughts of answers, the text beside a tool call, names and whatever other keys they do not know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from gym_data.rows import Message

THOUGHTS, ANSWER, CALLS, RESULT = "thoughts of an answer", "text of an answer", "a tool call", "a tool result"
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Keys of a message's thoughts, the standard one first; transformers takes the others for the same."""
SILENT = {"role", "content", "tool_calls", "id", "tool_call_id", *REASONING}
"""Keys that are looked at by themselves, or that only link messages to each other."""
_THINK = re.compile("</?think>")


def refuse(
    text: str,
    learnt: str,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    wanted: Collection[int],
    marks: str = "\0",
) -> None:
    """Raise ValueError where a text does not show a system or user message, a tool or the name of a tool call.

    In the contents of messages what the pattern `marks` matches stands for a medium.

    Likewise where what is `learnt` does not hold the text of a wanted answer that does nothing but answer, or no call of one that
    calls: it would learn to stop where it should call.
    """
    for index in wanted:
        calls = messages[index].get("tool_calls")
        if calls and not any(shows(call["function"]["name"], learnt) for call in calls):
            raise ValueError(f"the chat template leaves out the tool calls of message {index + 1} (assistant)")
        if not calls and not shows(_THINK.split(messages[index]["content"])[-1], learnt):
            raise ValueError(f"the chat template leaves out the text of message {index + 1} (assistant)")
    for number, message in enumerate(messages, 1):
        if message["role"] in ("system", "user") and not all(
            shows(each, text) for each in re.split(marks, message["content"])
        ):
            raise ValueError(f"the chat template leaves out message {number} ({message['role']})")
    functions = [tool.get("function", tool) for tool in tools]
    functions += [call["function"] for message in messages for call in message.get("tool_calls", ())]
    if any(function["name"] not in text for function in functions):
        raise ValueError("the chat template leaves out the tools; `template: qwen` shows them")


def lost(text: str, learnt: str, messages: Sequence[Message], wanted: Collection[int]) -> list[str]:
    """Return what is left out of messages: of the wanted answers by what is `learnt`, of the others by the whole text.

    Thoughts of answers that are not trained on are none of it: models are meant to see earlier turns without.
    """
    found: dict[str, None] = {}
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            found |= dict.fromkeys(_answer(message, learnt) if index in wanted else ())
        else:
            found |= dict.fromkeys(_context(message, text))
    return list(found)


def _answer(message: Message, learnt: str) -> Iterator[str]:
    *thoughts, said = _THINK.split(message["content"] or "")
    if not shows(said, learnt):
        yield ANSWER
    thoughts += [message[key] for key in REASONING if message.get(key)]
    if not all(shows(thought, learnt) for thought in thoughts):
        yield THOUGHTS
    calls = [call["function"] for call in message.get("tool_calls", ())]
    if not all(shows(part, learnt) for call in calls for part in _strings([call["name"], arguments(call)])):
        yield CALLS
    yield from _further(message, learnt)


def _context(message: Message, text: str) -> Iterator[str]:
    if message["role"] == "tool" and not shows(message["content"], text):
        yield RESULT
    yield from _further(message, text)


def _further(message: Message, text: str) -> Iterator[str]:
    for key, value in message.items():
        if key not in SILENT and not all(shows(part, text) for part in _strings(value)):
            yield f"`{key}` of a message ({message['role']})"


def arguments(call: Mapping[str, Any]) -> Any:
    """Return the arguments of a tool call as an object, also where they are its JSON text."""
    given = call.get("arguments")
    return json.loads(given) if isinstance(given, str) else given


def shows(part: str, text: str) -> bool:
    """Whether a text shows a part of a message, blanks around it aside, as it is or as JSON writes it."""
    part = part.strip()
    return part in text or any(json.dumps(part, ensure_ascii=plain)[1:-1] in text for plain in (False, True))


def _strings(value: Any) -> Iterator[str]:
    """Yield all texts in a value, the keys of objects too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)

"""The items of a response as they grow: thoughts, a message, and function calls."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from secrets import token_hex
from typing import Any

from gym_data.chat.answer_parser import Delta, ToolCall
from gym_serve.api.chat_completions import logprobs_of
from gym_serve.contract import TokenLogprob, Usage

Told = list[tuple[str, dict[str, Any]]]  #: events by name, with their data


class Items:
    """What an answer consists of so far."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._items: list[dict[str, Any]] = []
        self._open = False  #: whether more may be added to the last item

    def output(self) -> list[dict[str, Any]]:
        """Return the items."""
        return self._items

    def add(self, delta: Delta, logprobs: Sequence[TokenLogprob] = ()) -> Told:
        """Add to them, with the log-probabilities of the content, and return what a client is told of it."""
        told: Told = []
        for kind, text in (("reasoning", delta.reasoning), ("message", delta.content)):
            if text:
                told += self._begin(kind) + self._grow(kind, text, logprobs_of(logprobs)["content"])
        for call in delta.calls:
            told += self.end() + self._call(call)
        return told

    def end(self) -> Told:
        """End the last item, and return what a client is told of it."""
        if not self._open:
            return []
        self._open = False
        item = self._items[-1]
        item["status"] = "completed"
        part, at = item["content"][0], self._at()
        name = "response.output_text" if item["type"] == "message" else "response.reasoning_text"
        further = {key: part[key] for key in ("text", "logprobs") if key in part}
        return [
            (f"{name}.done", {**at, **further}),
            ("response.content_part.done", {**at, "part": part}),
            ("response.output_item.done", {"output_index": at["output_index"], "item": item}),
        ]

    def _begin(self, kind: str) -> Told:
        if self._open and self._items[-1]["type"] == kind:
            return []
        told = self.end()
        message = kind == "message"
        part: dict[str, Any] = {"type": "output_text" if message else "reasoning_text", "text": ""}
        if message:
            part |= {"annotations": [], "logprobs": []}
        item: dict[str, Any] = {"id": f"{'msg' if message else 'rs'}_{token_hex(12)}", "type": kind}
        if message:
            item["role"] = "assistant"
        else:
            item["summary"] = []
        self._items.append({**item, "status": "in_progress", "content": [part]})
        self._open = True
        at = self._at()
        added = {**item, "status": "in_progress", "content": []}
        return [
            *told,
            ("response.output_item.added", {"output_index": at["output_index"], "item": added}),
            ("response.content_part.added", {**at, "part": deepcopy(part)}),
        ]

    def _grow(self, kind: str, text: str, logprobs: list[dict[str, Any]]) -> Told:
        part = self._items[-1]["content"][0]
        part["text"] += text
        if kind != "message":
            return [("response.reasoning_text.delta", {**self._at(), "delta": text})]
        part["logprobs"] += logprobs
        return [("response.output_text.delta", {**self._at(), "delta": text, "logprobs": logprobs})]

    def _call(self, call: ToolCall) -> Told:
        item = {
            "id": f"fc_{token_hex(12)}",
            "type": "function_call",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
            "status": "completed",
        }
        self._items.append(item)
        place = len(self._items) - 1
        at = {"output_index": place, "item_id": item["id"]}
        begun = {**item, "arguments": "", "status": "in_progress"}
        return [
            ("response.output_item.added", {"output_index": place, "item": begun}),
            ("response.function_call_arguments.delta", {**at, "delta": call.arguments}),
            ("response.function_call_arguments.done", {**at, "arguments": call.arguments, "name": call.name}),
            ("response.output_item.done", {"output_index": place, "item": item}),
        ]

    def _at(self) -> dict[str, Any]:
        place = len(self._items) - 1
        return {"output_index": place, "content_index": 0, "item_id": self._items[place]["id"]}


def usage_of(usage: Usage) -> dict[str, Any]:
    """Return the tokens of a response."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }

"""The reward `tool-call`: the tool calls that the row expects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, ClassVar

from gym_rewards.builtin.json_schema import parse
from gym_rewards.reward import Reward, RewardInput
from gym_rewards.row_columns import column

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class ToolCall(Reward):
    """1 where the completion makes the tool calls of the row, in any order, with the same names and arguments; else 0.

    Calls are `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` blocks, as Hermes and Qwen write them, or a completion
    that is nothing but such JSON; of several turns those of all count.
    """

    target: ClassVar[str] = "gym_rewards.builtin.tool_calls:ToolCallScore"
    better: ClassVar[tuple[RewardInput, RewardInput] | None] = (
        RewardInput(
            '<tool_call>\n{"name": "get_time", "arguments": {"city": "Rome"}}\n</tool_call>',
            {"tool_calls": [{"name": "get_time", "arguments": {"city": "Rome"}}]},
        ),
        RewardInput("I do not know.", {"tool_calls": [{"name": "get_time", "arguments": {"city": "Rome"}}]}),
    )

    calls: str = "tool_calls"
    """Column of the expected calls: a list, one call, or the JSON text or `<tool_call>` blocks of them; OpenAI's form too."""
    partial: bool = False
    """Whether a call counts in part: half for the name, half for the share of right arguments; too many calls cost."""


class ToolCallScore:
    """Compares calls as sets: names and arguments, in any order."""

    def __init__(self, config: ToolCall) -> None:
        self.config = config

    def __call__(self, inputs: Sequence[RewardInput]) -> list[float]:
        """Return a number from 0 to 1 for each completion. Raises ValueError for a row whose calls cannot be read."""
        return [self._score(item) for item in inputs]

    def _score(self, item: RewardInput) -> float:
        if item.row.get(self.config.calls) is None:
            column(item, self.config.calls)
        expected = calls(item.row[self.config.calls])
        try:
            *before, last = item.written
            made = [call for text in before for call in calls(text, wholly=False)]
            made += _last(last) if before else calls(last, wholly=False)
        except (ValueError, RecursionError):  # brackets in brackets are quickly written
            return 0.0
        if not expected or not made:
            return float(not expected and not made)
        # Each pair from the best on, each call in one pair: what is missing or too much earns nothing.
        pairs = sorted(
            ((-_likeness(one, other), i, j) for (i, one), (j, other) in product(enumerate(expected), enumerate(made)))
        )
        total, taken, given = 0.0, set[int](), set[int]()
        for likeness, i, j in pairs:
            if i not in taken and j not in given:
                taken.add(i)
                given.add(j)
                total -= likeness
        share = total / max(len(expected), len(made))
        return share if self.config.partial else float(share == 1.0)


def calls(value: Any, wholly: bool = True) -> list[tuple[str, dict[str, Any]]]:
    """Return names and arguments of calls: blocks in a text, JSON text, one call or a list of them.

    Text without a block and without JSON is no call unless it must be one (`wholly`). Raises ValueError.
    """
    if isinstance(value, str):
        if _OPEN in value:
            return [call for block in _blocks(value) for call in calls(parse(block))]
        text = value.strip()
        if not wholly and not text.startswith(("{", "[")):
            return []
        return calls(parse(text))
    if isinstance(value, list | tuple):
        return [call for item in value for call in calls(item)]
    if not isinstance(value, Mapping):
        raise ValueError(f"a {type(value).__name__} is no tool call")
    function = value.get("function", value)
    name, arguments = (
        (function.get(key) for key in ("name", "arguments")) if isinstance(function, Mapping) else (None, None)
    )
    if isinstance(arguments, str):
        arguments = parse(arguments)
    if not isinstance(name, str) or not isinstance(arguments or {}, Mapping):
        raise ValueError("a tool call has a `name` and `arguments`")
    return [(name, dict(arguments or {}))]


def _last(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls of the last of several turns, which may be an answer in JSON. Raises ValueError for broken blocks."""
    try:
        return calls(text, wholly=False)
    except (ValueError, RecursionError):
        if _OPEN in text:
            raise
        return []


def _blocks(text: str) -> list[str]:
    """Return what stands between the tags. Raises ValueError where they do not pair up."""
    first, *rest = text.split(_OPEN)
    parts = [part.split(_CLOSE) for part in rest]
    if _CLOSE in first or any(len(part) != 2 for part in parts):
        raise ValueError("the tags do not pair up")
    return [part[0] for part in parts]


def _likeness(one: tuple[str, dict[str, Any]], other: tuple[str, dict[str, Any]]) -> float:
    """Return 1 for the same call, 0 for another name; between them half, and half of the share of equal arguments."""
    if one[0] != other[0]:
        return 0.0
    keys = one[1].keys() | other[1].keys()
    same = sum(key in one[1] and key in other[1] and _same(one[1][key], other[1][key]) for key in keys)
    return 0.5 + 0.5 * (same / len(keys) if keys else 1.0)


def _same(one: Any, other: Any) -> bool:
    """Compare as JSON does: 1 is 1.0, but neither is true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)

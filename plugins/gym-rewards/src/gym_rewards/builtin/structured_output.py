"""Scores of answers that programs read: `json` and `tool-call`."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from gym_core.errors import PluginError
from gym_rewards.reward import Answer
from gym_rewards.row_columns import column

if TYPE_CHECKING:
    from gym_rewards.builtin import JsonText, ToolCall

_FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*?)\n?```", re.DOTALL)
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


def parse(text: str) -> Any:
    """Return what strict JSON holds: `NaN` and `Infinity` are none. Raises ValueError."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


class JsonScore:
    """Parses answers, and validates them where there is a schema."""

    def __init__(self, config: JsonText) -> None:
        """Raise PluginError where a schema is given and jsonschema is not installed, ValueError for a wrong schema."""
        self.config = config
        if (config.json_schema is not None or config.column) and importlib.util.find_spec("jsonschema") is None:
            raise PluginError(
                "a schema needs jsonschema, which is not installed",
                key="algorithm.rewards",
                fix="pip install 'gym-rewards[json]'",
            )
        self._validator = None if config.json_schema is None else _validator(config.json_schema)

    def __call__(self, answers: Sequence[Answer]) -> list[float]:
        """Return 1 or 0 for each answer. Raises ValueError for a row whose schema is missing or wrong."""
        return [float(self._holds(answer)) for answer in answers]

    def _holds(self, answer: Answer) -> bool:
        validator = self._validator
        if self.config.column:
            schema = column(answer, self.config.column)
            validator = _validator(parse(schema) if isinstance(schema, str) else schema)
        text = answer.text.strip()
        fenced = _FENCE.fullmatch(text)
        try:
            value = parse(fenced[1] if fenced else text)
        except ValueError:
            return False
        return validator is None or bool(validator.is_valid(value))


def _validator(schema: Any) -> Any:
    from jsonschema import validators  # an extra
    from jsonschema.exceptions import SchemaError
    from referencing import Registry

    cls = validators.validator_for(schema, default=validators.Draft202012Validator)
    try:
        cls.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"the schema is none: {error.message}") from None
    return cls(schema, registry=Registry())  # an empty one: nothing is fetched


class ToolCallScore:
    """Compares calls as sets: names and arguments, in any order."""

    def __init__(self, config: ToolCall) -> None:
        self.config = config

    def __call__(self, answers: Sequence[Answer]) -> list[float]:
        """Return a number from 0 to 1 for each answer. Raises ValueError for a row whose calls cannot be read."""
        return [self._score(answer) for answer in answers]

    def _score(self, answer: Answer) -> float:
        if answer.row.get(self.config.calls) is None:
            column(answer, self.config.calls)
        expected = calls(answer.row[self.config.calls])
        try:
            made = calls(answer.text, wholly=False)
        except ValueError:
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

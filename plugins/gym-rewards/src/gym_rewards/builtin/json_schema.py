"""The reward `json`: JSON, of a schema where one is given."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from pydantic import model_validator

from gym_core.errors import PluginError
from gym_rewards.reward import Reward, RewardInput
from gym_rewards.row_columns import column

_FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*?)\n?```", re.DOTALL)


class JsonText(Reward):
    """1 where the completion is JSON, of a schema where one is given; else 0. It may stand in one fenced block."""

    target: ClassVar[str] = "gym_rewards.builtin.json_schema:JsonScore"
    separate_process: ClassVar[bool] = True  # a schema may hold patterns
    better: ClassVar[tuple[RewardInput, RewardInput] | None] = (
        RewardInput('{"city": "Paris"}'),
        RewardInput("{city: Paris}"),
    )

    json_schema: dict[str, Any] | None = None
    """JSON Schema that it must satisfy; needs jsonschema (`pip install gym-rewards[json]`)."""
    column: str = ""
    """Column of the row that holds a JSON Schema, an object or its JSON text; instead of `json_schema`."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.json_schema is not None and self.column:
            raise ValueError("`json_schema` and `column` exclude each other")
        return self

    def check(self) -> None:
        """Raise PluginError where a schema is given and jsonschema is not installed."""
        if (self.json_schema is not None or self.column) and importlib.util.find_spec("jsonschema") is None:
            raise PluginError(
                "a schema needs jsonschema, which is not installed",
                key="algorithm.rewards",
                fix="pip install 'gym-rewards[json]'",
            )


def parse(text: str) -> Any:
    """Return what strict JSON holds: `NaN` and `Infinity` are none. Raises ValueError."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


class JsonScore:
    """Parses completions, and validates them where there is a schema."""

    def __init__(self, config: JsonText) -> None:
        """Raise PluginError where a schema is given and jsonschema is not installed, ValueError for a wrong schema."""
        config.check()
        self.config = config
        self._validator = None if config.json_schema is None else _validator(config.json_schema)

    def __call__(self, inputs: Sequence[RewardInput]) -> list[float]:
        """Return 1 or 0 for each completion. Raises ValueError for a row whose schema is missing or wrong."""
        return [float(self._holds(item)) for item in inputs]

    def _holds(self, item: RewardInput) -> bool:
        validator = self._validator
        if self.config.column:
            schema = column(item, self.config.column)
            validator = _validator(parse(schema) if isinstance(schema, str) else schema)
        text = item.text.strip()
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

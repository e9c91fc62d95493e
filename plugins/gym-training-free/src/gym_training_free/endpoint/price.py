"""Prices of tokens: a table as data, with the day on which each price held."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from gym_core.component import Config
from gym_training_free.endpoint.ledger import Usage

MILLION = 1e6
Dollars = Annotated[float, Field(ge=0, le=MILLION)]


class Price(Config):
    """What an endpoint takes for tokens."""

    input: Dollars = 0.0
    """US dollars for a million tokens of a prompt."""
    output: Dollars = 0.0
    """US dollars for a million generated tokens."""
    cached_input: Dollars | None = None
    """US dollars for a million tokens of a prompt that the endpoint still has in its cache; by default as `input`."""

    @model_validator(mode="after")
    def _cheaper(self) -> Self:
        if self.cached_input is not None and self.cached_input > self.input:
            raise ValueError("`cached_input` is more than `input`")
        return self

    def of(self, usage: Usage) -> float:
        """Return US dollars."""
        cached = self.input if self.cached_input is None else self.cached_input
        fresh = usage.input - usage.cached
        return (fresh * self.input + usage.cached * cached + usage.output * self.output) / MILLION


@cache
def table() -> dict[str, dict[str, Any]]:
    """Return the known prices by the names of models, each with `as_of`."""
    found: dict[str, dict[str, Any]] = json.loads((files(__package__) / "prices.json").read_text(encoding="utf-8"))
    return found


def listed(model: str) -> Price | None:
    """Return the price of the table for a model, None where it has none; a provider before a slash does not matter."""
    found = {name.rpartition("/")[2]: row for name, row in table().items()}.get(model.rpartition("/")[2].lower())
    return Price(**{name: found[name] for name in Price.model_fields if name in found}) if found else None

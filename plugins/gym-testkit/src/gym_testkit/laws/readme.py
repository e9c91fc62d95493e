"""The README of a package shows how it is used, and what it shows runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import pytest
from pydantic import BaseModel

from gym_core import PluginError, Recipe, load_recipe
from gym_testkit.bench import Bench
from gym_testkit.distribution import Distribution
from gym_testkit.law import Laws


@runtime_checkable
class Declares(Protocol):
    """A component that says what it needs from outside."""

    outside: str


def _subjects(dist: Distribution) -> Iterator[tuple[str, Any]]:
    yield dist.name, dist
    yield from ((f"recipe {number}", recipe) for number, recipe in enumerate(dist.recipes, start=1))


def _is_recipe(subject: object) -> bool:
    return isinstance(subject, dict)


def _has_components(subject: object) -> bool:
    return isinstance(subject, Distribution) and bool(subject.components)


laws = Laws("readme", _subjects)


@laws("shows a recipe", _has_components)
def shows(dist: Distribution, bench: Bench) -> None:
    """At least one yaml block is a recipe."""
    assert dist.recipes, f"no ```yaml block in the README of {dist.name} has the keys `model` and `algorithm`"


@laws("its recipes validate", _is_recipe)
def validates(recipe: dict[str, Any], bench: Bench) -> None:
    """Every section names what exists, with options that exist."""
    _resolved(recipe)


@laws("its recipes run", _is_recipe)
def runs(recipe: dict[str, Any], bench: Bench) -> None:
    """The recipe trains two steps of the tiny model on tiny data."""
    for need in _needs(list(vars(_resolved(recipe)).values())):
        pytest.skip(f"needs {need}")
    assert bench.run(bench.shrink(recipe)).outcome.artifact.path.exists()


def _needs(options: Any) -> Iterator[str]:
    """Yield what components of a recipe declare that they need and no package brings."""
    if isinstance(options, Declares) and options.outside:
        yield options.outside
    if isinstance(options, list):
        for item in options:
            yield from _needs(item)
    if isinstance(options, BaseModel):
        for value in vars(options).values():
            yield from _needs(value)


def _resolved(recipe: dict[str, Any]) -> Recipe:
    """Validate; a recipe that shows this package beside others can only be asked where those are installed."""
    try:
        return load_recipe(recipe)
    except PluginError as error:
        if all("no installed plugin" in problem.why for problem in error.problems):
            pytest.skip(f"needs another package: {error.problems[0]}")
        raise

"""The README of a package shows how it is used, and what it shows runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires
from typing import Any

import pytest
from packaging.requirements import Requirement
from pydantic import BaseModel

from gym_core import PluginError, Recipe, load_recipe
from gym_core.component import Component
from gym_core.discovery import entries
from gym_core.metadata import canonical
from gym_testkit.bench import Bench
from gym_testkit.distribution import Distribution
from gym_testkit.law import Laws


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
    for need in needs_of(list(vars(_resolved(recipe)).values())):
        pytest.skip(f"needs {need}")
    assert bench.run(bench.shrink(recipe)).outcome.artifact.path.exists()


@laws(
    "its recipes need no package that it does not say to install",
    lambda subject: _has_components(subject) and subject.recipes,
)
def says_what_to_install(dist: Distribution, bench: Bench) -> None:
    """What a recipe names comes with the package, or with what a `pip install` in the README names."""
    lines = re.findall(r"pip install ([^\n`]+)", dist.readme)
    named = {canonical(re.split(r"[\[<>=!~;]", word.strip("'\""))[0]) for line in lines for word in line.split()}
    have = _closure([dist.name, "gym-core", *named])
    for recipe in dist.recipes:
        model = recipe["model"]["path"] if isinstance(recipe["model"], dict) else recipe["model"]
        used = {item.dist for item in _resolved(recipe).resolved if item.path[0] in recipe}
        used |= {entry.dist for entry in entries("families") if entry.name == model}
        assert used <= have, f"the recipe needs {', '.join(sorted(used - have))}, which no `pip install` there names"


def _closure(names: Sequence[str]) -> set[str]:
    """Return these packages and all that they need."""
    found, waiting = set[str](), [*names]
    while waiting:
        name = canonical(waiting.pop())
        if name in found:
            continue
        found.add(name)
        with suppress(PackageNotFoundError):
            waiting += [Requirement(line).name for line in requires(name) or [] if "extra ==" not in line]
    return found


def needs_of(options: Any) -> Iterator[str]:
    """Yield what components of a recipe declare that they need and no package brings."""
    if isinstance(options, Component) and options.outside:
        yield options.outside
    if isinstance(options, list):
        for item in options:
            yield from needs_of(item)
    if isinstance(options, BaseModel):
        for value in vars(options).values():
            yield from needs_of(value)


def _resolved(recipe: dict[str, Any]) -> Recipe:
    """Validate; a recipe that shows this package beside others can only be asked where those are installed."""
    try:
        return load_recipe(recipe)
    except PluginError as error:
        if all("no installed plugin" in problem.why for problem in error.problems):
            pytest.skip(f"needs another package: {error.problems[0]}")
        raise

"""Laws of dialects: the files that the README shows become recipes, the same each time, and what is wrong is said at its line."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import pytest
import yaml

from gym_core import GymError, load_recipe
from gym_core.component import load_object
from gym_core.sections import SECTIONS, Findings
from gym_testkit.bench import Bench
from gym_testkit.distribution import Distribution
from gym_testkit.law import Laws

STRANGE = "no_dialect_has_this_key"


class Dialect(NamedTuple):
    """A dialect, and the files of it that its package shows."""

    mark: str  #: the key that marks a file, which is the name of the entry point
    target: str
    files: list[dict[str, Any]]


def _subjects(dist: Distribution) -> Iterator[tuple[str, Dialect]]:
    for entry in dist.entry_points:
        if entry.group == "gym.dialects":
            files = [block for block in dist.blocks if entry.name in block]
            yield entry.name, Dialect(entry.name, entry.value, files)


laws = Laws("dialect", _subjects)


@laws("the README shows a file of it, which is a recipe")
def shows(dialect: Dialect, bench: Bench) -> None:
    """Some yaml block has the key that marks it, and each that has is a valid recipe."""
    assert dialect.files, f"no ```yaml block in the README has the key `{dialect.mark}`"
    for file in dialect.files:
        assert load_recipe(file).resolved


@laws("a file means the same each time, and is left as it was")
def the_same(dialect: Dialect, bench: Bench) -> None:
    """What comes out are sections, equal to those of a second translation; the file is not changed by it."""
    translate = load_object(dialect.target)
    for file in dialect.files:
        given = deepcopy(file)
        first, second = (translate(given, Findings()) for _ in range(2))
        assert given == file, "it changes what it is given"
        assert set(first) <= set(SECTIONS) and first == second, f"{first} becomes {second}"


@laws("a key that means nothing is refused under its own name, at its line")
def refuses(dialect: Dialect, bench: Bench) -> None:
    """The key, the file and the line of the error are those of the user."""
    for number, file in enumerate(dialect.files):
        path = bench.path(f"{number}.yaml")
        path.write_text(yaml.safe_dump(file, sort_keys=False) + f"{STRANGE}: 1\n", encoding="utf-8")
        with pytest.raises(GymError) as caught:
            load_recipe(path)
        line = len(path.read_text(encoding="utf-8").splitlines())
        said = [(problem.key, problem.where) for problem in caught.value.problems]
        assert said == [(STRANGE, f"{path}:{line}")], f"it is refused as {said}"

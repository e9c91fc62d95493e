"""Options of a command: a file, and `key=value` words. No torch is imported here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar

from gym_core import RecipeError
from gym_core.component import Config
from gym_core.dialect import apply_override
from gym_core.errors import Problem
from gym_core.sections import Findings, config, nested_slots
from gym_core.yamlfile import parse_scalar, read_yaml

GIVEN = "command line"

T = TypeVar("T", bound=Config)
Dialect = Callable[[dict[str, Any], Findings], dict[str, Any]]


def read_options(
    cls: type[T], path: Path | None, overrides: Sequence[str] = (), dialect: Dialect = lambda data, found: data
) -> T:
    """Return what a file says, and what `key=value` words say instead; `merger.rule.name=krum` sets a part of an option.

    `dialect` makes options of what other software writes.

    Raises RecipeError with every problem, each with its line.
    """
    document = None if path is None else read_yaml(path)
    data = {} if document is None else deepcopy(document.data)
    marks = {} if document is None else dict(document.marks)
    found = Findings(marks, folder=None if path is None else path.parent)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not key or not equals:
            found.problems.append(Problem(f"`{override}` is not key=value", GIVEN))
            continue
        try:
            marks[apply_override(data, key, parse_scalar(text), nested_slots(cls))] = GIVEN
        except RecipeError as error:
            found.problems += error.problems
    made = config(cls, dialect(data, found), (), found)
    if found.problems:
        raise RecipeError(found.problems)
    assert isinstance(made, cls)
    return made

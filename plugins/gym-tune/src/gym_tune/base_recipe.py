"""The recipe of a study with values of a trial, and the check of the whole space before the first trial."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from gym_core import GymError, Problem, Recipe, load_recipe
from gym_core.dialect import COMMAND
from gym_core.sections import Findings
from gym_tune.space import Axis, label

AFTERWARDS = ("quantization", "export")  #: sections of what becomes of a trained model
MOST = 256  #: corners of the space that are all checked; of a larger one, one key at a time


@dataclass(frozen=True)
class BaseRecipe:
    """The recipe that trials differ from, by file and overrides, so that keys of any dialect can be set."""

    file: Path
    overrides: tuple[str, ...]
    recipe: Recipe  #: as it is without the values of a trial

    @classmethod
    def load(cls, file: Path, overrides: tuple[str, ...]) -> BaseRecipe:
        """Read it. Raises RecipeError or PluginError as `gym train` does."""
        return cls(file, overrides, load_recipe(file, overrides))

    def with_values(self, values: Mapping[str, Any]) -> Recipe:
        """Return the recipe with these values by key. Raises RecipeError or PluginError for what does not fit."""
        return load_recipe(
            self.file, [*self.overrides, *(f"{key}={json.dumps(value)}" for key, value in values.items())]
        )

    def changed(self, axis: Axis) -> set[str]:
        """Return the settings of the canonical recipe that differ between values of a key of the space."""
        first, *others = (self.with_values({**axis.around, axis.key: value}).settings() for value in axis.corners())
        return {key for other in others for key in {*first, *other} if first.get(key) != other.get(key)}

    def runnable(self, values: Mapping[str, Any], output: str) -> dict[str, Any]:
        """Return the canonical recipe with these values: never one that sets a finished run aside."""
        canonical = self.with_values(values).canonical() | {"output": output}
        train = {key: value for key, value in canonical.get("train", {}).items() if key != "overwrite"}
        return canonical | {"train": train}

    def trial(self, values: Mapping[str, Any], output: str, seed: int | None = None) -> dict[str, Any]:
        """Return that without what is made of a trained model, which changes no metric; by default with the recipe's own seed."""
        recipe = self.runnable(values, output)
        train = recipe["train"] | ({} if seed is None else {"seed": seed})
        return {key: value for key, value in recipe.items() if key not in AFTERWARDS} | {"train": train}


def check_space(base: BaseRecipe, axes: Sequence[Axis], found: Findings) -> list[Axis]:
    """Return the axes as the recipe understands them; what it refuses is added to `found`, at the line of the study file.

    Both ends of each range and every choice are tried alone, then together.
    """
    checked = [_checked(base, axis, found) for axis in axes]
    if found.problems or math.prod(len(axis.corners()) for axis in axes) > MOST:
        return checked
    for values in product(*(axis.corners() for axis in checked)):
        together = dict(zip((axis.key for axis in checked), values, strict=True))
        if refused := _refused(base, together):
            said = ", ".join(f"{key}={label(value)}" for key, value in together.items())
            at = checked[0].path[:1]
            found.problems += [
                replace(problem, where=found.where(at), why=f"{problem.why}, with {said}") for problem in refused
            ]
            break
    return checked


def own_values(base: BaseRecipe, axes: Sequence[Axis]) -> tuple[dict[str, Any], str]:
    """Return the recipe's own values by key, and the first key whose own value is outside of the space, or an empty string."""
    values: dict[str, Any] = {}
    for axis in axes:
        if axis.range is None:
            same = [
                choice
                for choice in axis.choices
                if _number_for_number(base.with_values({axis.key: choice}), base.recipe)
            ]
            inside, value = bool(same), same[0] if same else None
        else:
            value = base.recipe.settings().get(_setting(base, axis))
            inside = axis.contains(value)
        if not inside:
            return values, axis.key
        values[axis.key] = value
    return values, ""


def _number_for_number(left: Recipe, right: Recipe) -> bool:
    return left.settings() == right.settings() and left.used() == right.used()


def _checked(base: BaseRecipe, axis: Axis, found: Findings) -> Axis:
    problems = [problem for value in axis.corners() for problem in _refused(base, {**axis.around, axis.key: value})]
    found.problems += [replace(problem, where=found.where(axis.path)) for problem in dict.fromkeys(problems)]
    if problems:
        return axis
    made = [base.with_values({**axis.around, axis.key: value}) for value in axis.corners()]
    if any(each.train.seed != base.recipe.train.seed for each in made):  # of the rows held out, among others
        found.add(axis.path, "is no hyperparameter", "leave it out: `repeats` runs the best trial with other seeds")
    elif axis.range is None:
        if len(made) > 1 and all(_number_for_number(made[0], each) for each in made[1:]):
            found.add(axis.path, "changes no number of a run", "leave it out of the space")
    else:
        return _range(base, axis, made, found)
    return axis


def _range(base: BaseRecipe, axis: Axis, made: Sequence[Recipe], found: Findings) -> Axis:
    """Return a range as real or whole numbers, as its recipes `made` with both ends have them."""
    key = _setting(base, axis)
    if not key:
        found.add(axis.path, "changes no number of a run, or more than one setting", "give a list of choices")
        return axis
    if all(
        isinstance(each.settings()[key], float) for each in made
    ):  # 0 may be a share too, where 100 is a number of steps
        return axis.as_real()
    if isinstance(axis.corners()[0], float):
        found.add(axis.path, "is a whole number", "write low, high and step without a fraction")
    return axis


def _refused(base: BaseRecipe, values: Mapping[str, Any]) -> list[Problem]:
    """Return the problems of the recipe with these values."""
    try:
        base.with_values(values).check()
    except GymError as error:
        return [replace(each, where="" if each.where == COMMAND else each.where) for each in error.problems]
    return []


def _setting(base: BaseRecipe, axis: Axis) -> str:
    """Return the setting of the canonical recipe that a key of any dialect sets; empty where that is not exactly one."""
    changed = base.changed(axis)
    return changed.pop() if len(changed) == 1 else ""

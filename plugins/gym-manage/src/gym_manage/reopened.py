"""A run that is opened again with another recipe, for commands that export or quantize what it made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gym_core import RecipeError, Run, load_recipe
from gym_core.hooks import manager_for
from gym_core.record import RunRecord
from gym_core.yamlfile import parse_scalar


def reopened(source: Mapping[str, Any], output: Path) -> tuple[Run, Any]:
    """Return the run in `output` and its hooks, with a recipe that is given anew: to export or to quantize what it made."""
    recipe = load_recipe(source)
    return Run(recipe, output, RunRecord(output / "run.json")), manager_for(recipe.hooks).hook


def options(name: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the name and the options of a component from `KEY=VALUE` words. Raises RecipeError where a word is none."""
    for text in overrides:
        if "=" not in text:
            fix = "`--into FOLDER` says where to write; `--help` names the other options"
            raise RecipeError(f"`{text}` is not KEY=VALUE", where="command line", fix=fix)
    pairs = (text.partition("=") for text in overrides)
    return {"name": name} | {key: parse_scalar(value) for key, _, value in pairs}

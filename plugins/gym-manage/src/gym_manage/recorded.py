"""What a run left behind, as its `run.json` says it: for commands that export it or quantize it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gym_core import Artifact, BusyError, RecipeError, Run, load_recipe
from gym_core.discovery import nearest
from gym_core.hooks import manager_for
from gym_core.record import RunRecord
from gym_core.yamlfile import parse_scalar


@dataclass(frozen=True)
class Recorded:
    """A run, or one of its checkpoints."""

    output: Path  #: of the run
    trained: Artifact  #: what training made
    artifact: Artifact  #: what the run made in the end, such as a quantized model; else the same
    recipe: dict[str, Any]  #: with every name said to be of the distribution that was used then
    label: str  #: ends the names of what is made of a checkpoint; empty for a run


def recorded(path: Path) -> Recorded:
    """Return what lies in the directory of a run, or in RUN/checkpoints/step-...; `best` is the best of them.

    Raises RecipeError where there is no such run or checkpoint, and BusyError where one is not trained to its end.
    """
    checkpoint = path if path.parent.name == "checkpoints" else None
    output = path.parent.parent if checkpoint else path
    if not (output / "run.json").is_file():
        runs = {each.parent.name: str(each.parent) for each in sorted(output.parent.glob("*/run.json"))}
        near = runs.get(nearest(output.name, runs))
        fix = f"did you mean `{near}`?" if near else "name the `output` of a run, or train it with `gym train`"
        raise RecipeError("is no run: there is no run.json", where=str(output), fix=fix)
    before = RunRecord(output / "run.json").read()
    if checkpoint and checkpoint.name == "best":
        checkpoint = checkpoint.with_name(str(before.get("best_checkpoint", "best")))
    if checkpoint and not checkpoint.is_dir():
        there = ", ".join(each.name for each in sorted(checkpoint.parent.glob("step-*"))) or "none yet"
        fix = f"there: {there}; `train.keep_best=true` keeps the best one too"
        raise RecipeError("there is no such checkpoint", where=str(checkpoint), fix=fix)
    if not checkpoint and not before.get("trained"):
        raise BusyError(
            f"is no finished run (status: {before.get('status')})",
            where=str(output),
            fix="finish it with `gym train`, or name a checkpoint in it: RUN/checkpoints/step-...",
        )
    if checkpoint:
        found = Artifact.read(checkpoint)
        return Recorded(output, found, found, _as_recorded(before), f"-{checkpoint.name}")
    trained = Artifact.from_json(before["trained"], output)
    finished = before.get("status") == "finished"
    made = Artifact.from_json(before["artifact"], output) if finished else trained
    return Recorded(output, trained, made, _as_recorded(before), "")


def reopened(source: Mapping[str, Any], output: Path) -> tuple[Run, Any]:
    """Return the run in `output` and its hooks, with a recipe that is given anew: to export or to quantize what it made."""
    recipe = load_recipe(source)
    return Run(recipe, output, RunRecord(output / "run.json")), manager_for(recipe.hooks).hook


def options(name: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the name and the options of a component from `KEY=VALUE` words."""
    pairs = (text.partition("=") for text in overrides)
    return {"name": name} | {key: parse_scalar(value) for key, _, value in pairs}


def _as_recorded(record: Mapping[str, Any]) -> dict[str, Any]:
    recipe: dict[str, Any] = deepcopy(record["recipe"])
    for item in record.get("components", ()):
        place: Any = recipe
        with suppress(LookupError, TypeError):  # an option that nobody set is not written
            for part in item["path"] if item["selector"] else item["path"][:-1]:
                place = place[part]
            place[item["selector"] or item["path"][-1]] = f"{item['dist']}/{item['name']}"
    return recipe

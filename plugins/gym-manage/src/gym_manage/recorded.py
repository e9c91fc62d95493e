"""What lies in a folder: what a run made, as its `run.json` says it, an artifact, an adapter of peft or a model.

This is the one rule for what a path to a model may be. Families and names on the Hub are of gym-data, which asks here first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gym_core.artifact import FILE, Artifact
from gym_core.discovery import nearest
from gym_core.errors import BusyError, GymError, RecipeError
from gym_core.files import expanded
from gym_core.record import RunRecord

PEFT = "adapter_config.json"  #: marks a folder that peft wrote
RECORD = "run.json"


@dataclass(frozen=True)
class Recorded:
    """A run, one of its checkpoints, or what no run made."""

    output: Path  #: of the run
    trained: Artifact  #: what training made
    artifact: Artifact  #: what the run made in the end, such as a quantized model; else the same
    recipe: dict[str, Any]
    """With every name said to be of the distribution that was used then; empty where no run made it."""
    label: str  #: ends the names of what is made of a checkpoint; empty for a run

    def place(self, name: str) -> Path:
        """Return where something of this name that is made of it goes by default. Raises GymError where no run made it."""
        if self.recipe:
            return self.output / f"{name}{self.label}"
        why = "no run made it, so it is not known where to write"
        raise GymError(why, where=str(self.output), fix="say it: --into FOLDER")


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


def found_in(path: Path) -> Recorded:
    """Return what lies in a folder as `recorded` does; what no run made has no recipe. Raises what `artifact_in` raises."""
    if is_run(path) or not path.is_dir():
        return recorded(path)
    artifact = artifact_in(path)
    if _made_by_run(path) is not None:  # RUN/model: what is made of it goes where that of the run does
        return replace(recorded(path.parent), trained=artifact, artifact=artifact)
    return Recorded(path, artifact, artifact, {}, "")


def may_be_name(path: Path) -> bool:
    """Whether it is no folder, and does not lie in one: then it may name a family, or a model on the Hub."""
    said = expanded(str(path))
    return not (said.is_dir() or is_run(said) or said.is_absolute()) and (
        said.parent == Path() or not said.parent.is_dir()
    )


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a run, or named as one of its checkpoints."""
    return (folder / RECORD).is_file() or (folder.parent.name == "checkpoints" and is_run(folder.parent.parent))


def artifact_in(
    folder: Path, key: str = "", fix: str = "name the output of a run, or the folder of a model"
) -> Artifact:
    """Return what lies in a folder: what a run made in the end, a checkpoint, an artifact, an adapter of peft, or a model.

    `key` is what errors call it, `fix` what they advise where nothing is near. Raises RecipeError where there is none, and what
    `recorded` and `Artifact.read` raise.
    """
    if is_run(folder):
        return recorded(folder).artifact
    if (folder / FILE).is_file():
        return Artifact.read(folder)
    if (made := _made_by_run(folder)) is not None:
        return made
    if (folder / PEFT).is_file():
        return Artifact(folder, "adapter", base=_base_in(folder / PEFT, key))
    if (folder / "config.json").is_file():
        return Artifact(folder)
    inner = next((child.parent for child in sorted(folder.glob("*/config.json"))), None)
    why = "has no config.json, so it holds no model" if folder.is_dir() else "there is no such folder"
    raise RecipeError(why, where=str(folder), key=key, fix=f"did you mean `{inner}`?" if inner else fix)


def _made_by_run(folder: Path) -> Artifact | None:
    """Return what the record of a run says of a folder in its output, such as RUN/model, which says nothing of itself."""
    if not is_run(folder.parent):
        return None
    with suppress(BusyError):
        found = recorded(folder.parent)
        return next((each for each in (found.artifact, found.trained) if each.path == folder), None)
    return None


def _base_in(file: Path, key: str) -> str:
    """Return what an adapter of peft calls its model; nothing where it does not say."""
    try:
        return str(json.loads(file.read_text(encoding="utf-8")).get("base_model_name_or_path") or "")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise GymError(f"is no configuration of an adapter: {str(error)[:100]}", where=str(file), key=key) from None


def _as_recorded(record: Mapping[str, Any]) -> dict[str, Any]:
    recipe: dict[str, Any] = deepcopy(record["recipe"])
    for item in record.get("components", ()):
        place: Any = recipe
        with suppress(LookupError, TypeError):  # an option that nobody set is not written
            for part in item["path"] if item["selector"] else item["path"][:-1]:
                place = place[part]
            place[item["selector"] or item["path"][-1]] = f"{item['dist']}/{item['name']}"
    return recipe

"""The folder of a study: the study of Optuna in SQLite, what it was begun with, and a folder for each trial."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import RDBStorage

from gym_core import BusyError, GymError, Recipe
from gym_core.files import write_atomically
from gym_core.record import plain
from gym_tune.metric import Metric
from gym_tune.space import Axis
from gym_tune.study import StudyFile
from gym_tune.trial_process import RunFiles

DATABASE, SETTINGS = "study.db", "study.json"
NAME = "study"  #: of the only study in the database


class StudyFolder:
    """Where a study lies. Whoever writes there has its lock."""

    def __init__(self, path: Path) -> None:
        """Nothing is read or written yet."""
        self.path = path

    def trial(self, number: int) -> RunFiles:
        """Return the files of a trial."""
        return RunFiles(self.path / "trials" / f"{number:04d}")

    def repeat(self, number: int, seed: int) -> RunFiles:
        """Return the files of a trial that is run again with another seed."""
        return RunFiles(self.path / "repeats" / f"{number:04d}-seed-{seed}")

    def open(self, settings: Mapping[str, Any], metric: Metric) -> optuna.Study:
        """Return the study of Optuna as far as it got. Raises BusyError where the folder holds another one, or something else."""
        known = _read(self.path / SETTINGS)
        if known is None and any(not each.name.startswith(".") for each in self.path.iterdir()):
            raise BusyError(
                "is not empty and holds no study", where=str(self.path), key="output", fix="choose another `output`"
            )
        now = json.loads(json.dumps(plain(settings)))
        changed = [key for key in sorted({*(known or now), *now}) if (known or now).get(key) != now.get(key)]
        if changed:
            shown = ", ".join(f"{key} {(known or now).get(key)!r:.80} -> {now.get(key)!r:.80}" for key in changed[:3])
            more = f" and {len(changed) - 3} more" * (len(changed) > 3)
            fix = "choose another `output`; only n_trials, timeout and repeats may change"
            raise BusyError(f"holds another study: {shown}{more}", where=str(self.path), key="output", fix=fix)
        if known is None:
            write_atomically(self.path / SETTINGS, json.dumps(now, indent=2, ensure_ascii=False) + "\n", alone=True)
        for name in ("trials", "repeats"):
            (self.path / name).mkdir(exist_ok=True)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        path = self.path / DATABASE
        # the path is not written into an URL, in which some characters mean something else
        try:
            storage = RDBStorage(
                "sqlite:///study.db", engine_kwargs={"creator": lambda: sqlite3.connect(path, timeout=60)}
            )
            return optuna.create_study(
                storage=storage, study_name=NAME, direction=metric.direction, load_if_exists=True
            )
        except Exception as error:
            why = f"cannot be read: {type(error).__name__}: {error}".partition("\n")[0][:200]
            raise GymError(why, where=str(path), fix="move the folder away to begin anew") from error


def settings_of(file: StudyFile, axes: list[Axis], metric: Metric, recipe: Recipe) -> dict[str, Any]:
    """Return all that can change a number of the study, by dotted key: what may not change when it goes on."""
    study = file.study
    found: dict[str, Any] = {"metric": metric.name, "direction": metric.direction, "seed": study.seed}
    # runs may change this one as they go on, but it decides which of their values counts
    found["recipe.train.load_best_model_at_end"] = recipe.train.load_best_model_at_end
    found |= {"average_over": metric.average_over, "starting_points": list(study.starting_points)}
    for axis in axes:
        found[f"space.{axis.key}"] = axis.range.model_dump() if axis.range else list(axis.choices)
    for part in file.found.resolved:
        found[str(part.path[0])] = f"{part.name} of {part.dist} {part.version}"
    for name, options in (("sampler", study.sampler), ("pruner", study.pruner)):
        found |= {f"{name}.{key}": value for key, value in options.model_dump().items()}
    found |= {f"recipe.{key}": value for key, value in recipe.settings().items()}
    return found | {f"package of {kind}/{name}": f"{dist} {version}" for kind, name, dist, version in recipe.used()}


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise GymError("is not the record of a study", where=str(path), fix="move the folder away to begin anew")
    return found

"""A study from its file to its outcome: what is checked before the first trial, the search, runs with other seeds, the files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gym_core import GymError
from gym_core.files import expanded
from gym_core.hooks import manager_for
from gym_core.outputlock import OutputLock
from gym_torch.loop.signals import Signals
from gym_tune import report
from gym_tune.base_recipe import BaseRecipe, check_space, own_values
from gym_tune.metric import Metric, metric_of
from gym_tune.notes import notes
from gym_tune.search import Search
from gym_tune.show import Screen
from gym_tune.space import Axis, read_space
from gym_tune.study import StudyFile, raise_problems
from gym_tune.study_folder import StudyFolder, settings_of
from gym_tune.trial_process import reason


def tuned(file: StudyFile) -> dict[str, Any]:
    """Carry out a study, or go on with it, and return its outcome. Raises GymError for what is wrong, and Interrupted."""
    base, axes, metric = prepared(file)
    own, outside = own_values(base, axes)
    screen = Screen(metric, file.study.n_trials)
    with OutputLock(expanded(file.output())) as lock, Signals() as signals:
        folder = StudyFolder(lock.directory)
        study = folder.open(settings_of(file, axes, metric, base.recipe), metric)
        for note in notes(file.study, base, axes, metric, outside):
            screen.say(f"note: {note}")
        search = Search(file.study, base, axes, metric, folder, study, {} if outside else own, signals, screen)
        repeats: dict[str, list[float]] = {}
        try:
            search.run()
            repeats = repeated(search)
        finally:
            screen.closed()
            outcome = report.summary(search, repeats)
            report.write(search, outcome)
    return outcome


def prepared(file: StudyFile) -> tuple[BaseRecipe, list[Axis], Metric]:
    """Return the recipe, the space and the metric. Raises GymError with all that is wrong, before anything is written."""
    found = file.found
    axes = read_space(file.study.space, found)
    raise_problems(found)
    base = BaseRecipe.load(file.recipe_path(), file.overrides)
    axes = check_space(base, axes, found)
    _check_points(file, axes)
    _check_finite(file, axes)
    raise_problems(found)
    file.study.sampler.check()
    file.study.pruner.check()
    manager_for(base.recipe.hooks)
    return base, axes, metric_of(file.study, base.recipe)


def repeated(search: Search) -> dict[str, list[float]]:
    """Run the best trial and the recipe's own values with other seeds; return their values. Finished ones are only read."""
    best, count = search.best(), search.study.repeats
    if best is None or not count:
        return {}
    trials = {"best": best}
    if search.own and best.number:
        trials["own values"] = search.trials()[0]
    seeds = range(search.base.recipe.train.seed + 1, search.base.recipe.train.seed + 1 + count)
    return {
        name: [_repeat(search, trial.number, search.values_of(trial), seed) for seed in seeds]
        for name, trial in trials.items()
    }


def _repeat(search: Search, number: int, values: Mapping[str, Any], seed: int) -> float:
    files = search.folder.repeat(number, seed)
    if not files.finished():
        search.screen.say(f"trial {number} again with seed {seed}")
        ending = search.follow(files, search.base.trial(values, str(files.folder), seed), lambda value: False)
        if not ending.finished:
            raise GymError(f"a repeat failed: {reason(files, ending.code)}", where=str(files.log))
    value = search.metric.result(files.folder)
    if not math.isfinite(value):
        raise GymError(f"a repeat ended without a finite `{search.metric.name}`", where=str(files.log))
    return value


def _check_points(file: StudyFile, axes: list[Axis]) -> None:
    """Note starting points that are none of the space."""
    by_key = {axis.key: axis for axis in axes}
    for number, point in enumerate(file.study.starting_points):
        for key, value in point.items():
            if key not in by_key:
                file.found.add(
                    ("starting_points", number, key), "is no key of the space", f"the space has {', '.join(by_key)}"
                )
            elif not by_key[key].contains(value):
                file.found.add(("starting_points", number, key), f"{value!r:.60} is outside of the space")


def _check_finite(file: StudyFile, axes: list[Axis]) -> None:
    """Note ranges of real numbers without a step where every point is to be tried."""
    for axis in axes:
        if file.study.sampler.finite and axis.endless:
            file.found.add(
                axis.path, "has no end of values, and the sampler tries each", "give it a `step`, or a list of choices"
            )

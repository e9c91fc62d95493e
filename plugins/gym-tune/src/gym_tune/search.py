"""Carries out a study: one trial after another, each a run of its own, until there are enough."""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from signal import SIGINT, SIGTERM
from typing import Any

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from gym_core import BusyError, GymError, Interrupted, PluginError
from gym_core.errors import BUSY
from gym_core.files import write_atomically
from gym_manage.yaml_text import dump_yaml
from gym_torch.loop.signals import Signals
from gym_tune.base_recipe import BaseRecipe
from gym_tune.metric import FILE, Metric, Value, keys, steps
from gym_tune.notes import once_at_the_end
from gym_tune.rows import with_other_rows
from gym_tune.show import Screen
from gym_tune.space import Axis, label
from gym_tune.study import Study
from gym_tune.study_folder import StudyFolder
from gym_tune.trial_process import Ending, RunFiles, follow, reason

FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))  #: what a run says of a disk without room
TRIES = 5  #: trials after which a study ends in which none came to a value
REASON, STEPS, SECONDS, ALL_TRIED = "reason", "steps", "seconds", "all_tried"  #: attributes in the study of Optuna


@dataclass
class Search:
    """A study that is open, with all that its trials need."""

    study: Study
    base: BaseRecipe
    axes: list[Axis]
    metric: Metric
    folder: StudyFolder
    optuna: optuna.Study
    own: Mapping[str, Any]  #: the recipe's own values by key; empty where they are outside of the space
    signals: Signals
    screen: Screen

    @cached_property
    def at_the_end(self) -> bool:
        """Whether runs come to the metric no sooner than at their end, where there is nothing left to prune."""
        return once_at_the_end(self.base, self.axes, self.metric)

    def run(self) -> None:
        """Go on until there are enough trials, time is up, or nothing is left to try.

        Raises Interrupted where this process was asked to stop, and GymError where no trial comes to a value.
        """
        began = time.monotonic()
        self.optuna.pruner = _promised(self.study.pruner.build(), optuna.pruners.BasePruner, "pruner")
        self._enqueue()
        while (trial := self._unfinished()) or not self._enough(time.monotonic() - began):
            number = self._number(trial)
            sampler = self.study.sampler.build(seed=self.study.seed, trial=number)
            self.optuna.sampler = _promised(sampler, optuna.samplers.BaseSampler, "sampler")
            self._carry_out(Trial(self.optuna, trial._trial_id) if trial else self.optuna.ask())
            tried = self.trials()
            if number in self.with_other_rows():
                self.screen.say(
                    "warning: its data are not those of the trials before, so it does not compare with them"
                )
            if len(tried) >= TRIES and all(each.state == TrialState.FAIL for each in tried if each.state.is_finished()):
                last = next(each for each in reversed(tried) if each.state == TrialState.FAIL)
                why = f"none of the first trials came to a value; the last: {last.user_attrs.get(REASON, 'no reason')}"
                raise GymError(why, where=str(self.folder.trial(last.number).log), fix="mend the recipe or the space")

    def trials(self) -> list[FrozenTrial]:
        """Return all trials, in order."""
        return self.optuna.get_trials(deepcopy=False)

    def best(self) -> FrozenTrial | None:
        """Return the best trial that came to its end; the earlier of two that are equal."""
        done = [each for each in self.trials() if each.state == TrialState.COMPLETE]
        signed = 1.0 if self.metric.direction == "minimize" else -1.0
        return min(done, key=lambda each: signed * (each.value or 0.0), default=None)

    def values_of(self, trial: FrozenTrial) -> dict[str, Any]:
        """Return what the recipe of a trial is given, by key."""
        return {axis.key: axis.value(trial.params[axis.key]) for axis in self.axes if axis.key in trial.params}

    def with_other_rows(self) -> list[int]:
        """Return the trials whose values do not compare with those of the others: files of the data changed before them."""
        return with_other_rows((each.number, self.folder.trial(each.number).record()) for each in self.trials())

    def follow(self, files: RunFiles, recipe: Mapping[str, Any], seen: Callable[[Value], bool]) -> Ending:
        """Carry out one run. Raises Interrupted where this process was asked to stop, and GymError where the run was."""
        if self.signals.received:
            raise Interrupted(SIGINT if self.signals.received == SIGINT else SIGTERM)
        write_atomically(files.recipe, dump_yaml(dict(recipe)), alone=True)
        ending = follow(files, self.metric, seen, self.signals)
        if self.signals.received and not ending.finished:
            raise Interrupted(SIGINT if self.signals.received == SIGINT else SIGTERM)
        if ending.finished or ending.told:
            return ending
        why, again = reason(files, ending.code), "run the same command to continue"
        if ending.stopped:
            kind = BusyError if ending.code == BUSY else GymError
            raise kind(f"the run stopped: {why}", where=str(files.log), fix=again)
        if any(
            text in why for text in FULL
        ):  # which says nothing about the values of the trial, and would fail all others too
            room = f"make room, such as {files.folder.parent}/*/checkpoints, and {again}"
            raise GymError("the disk is full", where=str(files.folder), fix=room)
        return ending

    def _enqueue(self) -> None:
        for point in [*([self.own] if self.own else []), *self.study.starting_points]:
            self.optuna.enqueue_trial({key: label(value) for key, value in point.items()}, skip_if_exists=True)

    def _unfinished(self) -> FrozenTrial | None:
        return next((each for each in self.trials() if each.state == TrialState.RUNNING), None)

    def _number(self, unfinished: FrozenTrial | None) -> int:
        trials = self.trials()
        waiting = (each for each in trials if each.state == TrialState.WAITING)
        return unfinished.number if unfinished else next((each.number for each in waiting), len(trials))

    def _enough(self, seconds: float) -> bool:
        done = sum(1 for each in self.trials() if each.state.is_finished())
        late = self.study.timeout is not None and seconds > self.study.timeout
        return done >= self.study.n_trials or late or bool(self.optuna.user_attrs.get(ALL_TRIED))

    def _carry_out(self, trial: Trial) -> None:
        for axis in self.axes:
            axis.suggest(trial)
        frozen = self.trials()[trial.number]
        files = self.folder.trial(trial.number)
        values = self.values_of(frozen)
        self.screen.begins(trial.number, values)
        began, before = time.monotonic(), frozen.user_attrs.get(SECONDS, 0.0)
        try:
            recipe = self.base.trial(values, str(files.folder))
        except GymError as error:  # such as a point within a range that both ends say nothing of
            self._tell(trial, TrialState.FAIL, why=" ".join(str(error).split()))
            return
        pruned = False

        def seen(value: Value) -> bool:
            nonlocal pruned
            self.screen.measured(value)
            if math.isfinite(value.value):
                if value.step not in self.trials()[trial.number].intermediate_values:
                    trial.report(value.value, value.step)
                pruned = not self.at_the_end and trial.should_prune()
            return pruned

        try:
            ending = self.follow(files, recipe, seen)
        finally:
            trial.set_user_attr(SECONDS, before + time.monotonic() - began)
            trial.set_user_attr(STEPS, steps(files.folder / FILE))
        if pruned:
            self._tell(trial, TrialState.PRUNED)
        elif not ending.finished:
            self._tell(trial, TrialState.FAIL, why=reason(files, ending.code))
        elif not self.metric.values(files.folder):
            self._tell(trial, TrialState.FAIL, why=f"it wrote no `{self.metric.name}`")
            has = ", ".join(keys(files.folder / FILE)) or "nothing"
            fix = "name one of these as `metric`; rows held out (`data.validation`) give those of evaluations"
            raise GymError(
                f"the run wrote no `{self.metric.name}`, but {has}",
                where=str(files.folder / FILE),
                key="metric",
                fix=fix,
            )
        elif math.isfinite(value := self.metric.result(files.folder)):
            self._tell(trial, TrialState.COMPLETE, value)
        else:
            self._tell(trial, TrialState.FAIL, why=f"`{self.metric.name}` is no finite number at its end")

    def _tell(self, trial: Trial, state: TrialState, value: float | None = None, why: str = "") -> None:
        if why:
            trial.set_user_attr(REASON, why)
        try:
            self.optuna.tell(trial, value, state)
        except (
            RuntimeError
        ):  # how a sampler that has tried everything asks for the end, which only `Study.optimize` hears
            self.optuna.set_user_attr(ALL_TRIED, True)
        self.screen.ended(self.trials()[trial.number], self.best())


def _promised(built: Any, kind: type[Any], key: str) -> Any:
    """Return what a component built. Raises PluginError where it is not what Optuna uses."""
    if not isinstance(built, kind):
        raise PluginError(
            f"it built a `{type(built).__name__}`, no {kind.__name__} of Optuna", key=key, fix="update its package"
        )
    return built

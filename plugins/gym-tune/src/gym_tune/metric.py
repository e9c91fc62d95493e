"""The metric of a study: which key of `metrics.jsonl`, which way it is better, and what a run has of it so far."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from gym_core import Recipe, RecipeError
from gym_data.kinds import DataAlgorithm
from gym_tune.study import Study

FILE = "metrics.jsonl"
HELD_OUT = "eval_"  #: what the log puts before a metric of an evaluation
DIRECTIONS: dict[str, Literal["minimize", "maximize"]] = {"lower": "minimize", "higher": "maximize"}


class Value(NamedTuple):
    """The metric after a step; NaN where the run computed no number."""

    step: int
    value: float


@dataclass(frozen=True)
class Metric:
    """What is compared between trials."""

    name: str
    direction: Literal["minimize", "maximize"]
    average_over: int = 1  #: newest values of which the mean is taken
    kept: str = ""  #: metric of the evaluation whose model a run keeps; empty where it keeps that of the last step
    kept_direction: Literal["minimize", "maximize"] = "minimize"  #: which way that is better

    def values(self, folder: Path) -> list[Value]:
        """Return the values of a run in the order of its steps, each a mean over the newest."""
        values: dict[int, float] = {}
        for record in records(folder / FILE, self.name):
            number = record[self.name]
            values[record["step"]] = float(number) if isinstance(number, int | float) else math.nan
        found = [Value(step, values[step]) for step in sorted(values)]
        return [Value(at.step, _mean(found[max(0, end - self.average_over) : end])) for end, at in enumerate(found, 1)]

    def result(self, folder: Path) -> float:
        """Return what a finished run is worth: its metric at the step whose model it keeps; NaN where that is no number."""
        values = self.values(folder)
        if self.kept and self.name.startswith(HELD_OUT):
            signed = 1.0 if self.kept_direction == "minimize" else -1.0
            evaluations = replace(self, name=self.kept, average_over=1).values(folder)
            trained = [each for each in evaluations if each.step and math.isfinite(each.value)]
            best = min(trained, key=lambda each: signed * each.value, default=None)  # the earliest of equal ones
            values = [each for each in values if best is None or each.step == best.step]
        return values[-1].value if values else math.nan

    def better(self, left: float, right: float) -> bool:
        """Whether one value is better than another."""
        return left < right if self.direction == "minimize" else left > right


def metric_of(study: Study, recipe: Recipe) -> Metric:
    """Return the metric that a study names, or what the algorithm improves on rows held out.

    Raises RecipeError where nobody says what it is, which way it is better, or where no rows are held out for it.
    """
    algorithm = recipe.algorithm
    known: dict[str, str] = {}
    if isinstance(algorithm, DataAlgorithm):
        known = {algorithm.measure: algorithm.better, **algorithm.evaluation_metrics()}
        name = study.metric or f"{HELD_OUT}{algorithm.measure}"
    elif study.metric:
        name = study.metric
    else:
        raise RecipeError(
            "this algorithm does not say what it improves", key="metric", fix="name a key of metrics.jsonl"
        )
    better = DIRECTIONS.get(known.get(name.removeprefix(HELD_OUT), ""))
    direction = study.direction or better
    if direction is None:
        why = f"the algorithm does not say which way `{name}` is better"
        raise RecipeError(why, key="direction", fix="set `direction: minimize` or `direction: maximize`")
    settings = recipe.settings()
    none_held_out = settings.get("data.validation") == 0 and not any("validation_sources" in key for key in settings)
    if study.metric is None and none_held_out:
        of_training = name.removeprefix(HELD_OUT)
        fix = f"set `data.validation=0.05` in the recipe, or name a metric of training: `metric: {of_training}`"
        raise RecipeError(f"no rows are held out, on which `{name}` could be measured", key="data.validation", fix=fix)
    return Metric(name, direction, study.average_over, *_kept(recipe, known))


def _kept(recipe: Recipe, known: Mapping[str, str]) -> tuple[str, Literal["minimize", "maximize"]]:
    """Return the metric by which runs choose the model that they keep, and which way it is better."""
    algorithm, train = recipe.algorithm, recipe.train
    if not (train.load_best_model_at_end and isinstance(algorithm, DataAlgorithm)):
        return "", "minimize"
    name = (train.metric_for_best_model or algorithm.measure).removeprefix(HELD_OUT)
    better = DIRECTIONS.get(known.get(name, next((known[key] for key in known if name.endswith(f"_{key}")), "")))
    if train.greater_is_better is not None:
        better = "maximize" if train.greater_is_better else "minimize"
    return f"{HELD_OUT}{name}", better or "minimize"


def records(path: Path, name: str) -> Iterator[dict[str, Any]]:
    """Yield the lines of `metrics.jsonl` that have a metric; a line that a kill cut short does not count."""
    with suppress(FileNotFoundError), path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if f'"{name}"' in line and line.endswith("\n"):
                with suppress(ValueError, KeyError, TypeError):
                    record = json.loads(line)
                    if name in record and isinstance(record["step"], int):
                        yield record


def keys(path: Path) -> list[str]:
    """Return the metrics that a run wrote, in order."""
    return list(
        dict.fromkeys(key for record in records(path, "step") for key in record if key not in ("step", "epoch"))
    )


def steps(path: Path) -> int:
    """Return the last step that a run wrote down."""
    return max((record["step"] for record in records(path, "step")), default=0)


def _mean(values: list[Value]) -> float:
    return sum(each.value / len(values) for each in values)  # also of infinities, which `fsum` refuses

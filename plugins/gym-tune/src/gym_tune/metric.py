"""The metric of a study: which key of `metrics.jsonl`, which way it is better, and what a run has of it so far."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
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
    of_best: bool = False  #: whether a run keeps the model of its best evaluation, so that its best value is its value

    def values(self, folder: Path) -> list[Value]:
        """Return the values of a run in the order of its steps, each a mean over the newest."""
        values: dict[int, float] = {}
        for record in records(folder / FILE, self.name):
            number = record[self.name]
            values[record["step"]] = math.nan if number is None else float(number)
        found = [Value(step, values[step]) for step in sorted(values)]
        return [Value(at.step, _mean(found[max(0, end - self.average_over) : end])) for end, at in enumerate(found, 1)]

    def result(self, values: list[Value]) -> float:
        """Return what a finished run is worth; NaN where that is no number."""
        trained = [each.value for each in values if each.step] if self.of_best else []
        finite = [value for value in trained if math.isfinite(value)]
        if finite:
            return min(finite) if self.direction == "minimize" else max(finite)
        return values[-1].value

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
    train = recipe.train
    chosen = train.metric_for_best_model or (algorithm.measure if isinstance(algorithm, DataAlgorithm) else "")
    of_best = train.load_best_model_at_end and name.removeprefix(HELD_OUT) == chosen.removeprefix(HELD_OUT)
    return Metric(name, direction, study.average_over, of_best)


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
    return math.fsum(each.value for each in values) / len(values)

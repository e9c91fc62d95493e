"""By which metric of an evaluation the best checkpoint is told, and early stopping."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from gym_core import Recipe, RecipeError
from gym_data.kinds import Data, DataAlgorithm
from gym_torch.config import torch_algorithm
from gym_torch.kinds import part

PREFIX = "eval_"  #: what the log puts before a metric of an evaluation
KEY = "train.metric_for_best_model"


class BestMetric(NamedTuple):
    """A metric, and which way it improves."""

    name: str = "loss"  #: without `eval_`
    better: str = "lower"  #: `lower` or `higher`
    declared: bool = True  #: whether the algorithm says that its evaluations give it


LOSS = BestMetric()


def best_metric(recipe: Recipe) -> BestMetric:
    """Return what the recipe names, or what its algorithm improves.

    Raises RecipeError where neither the recipe nor the algorithm says which way that improves.
    """
    algorithm, train = torch_algorithm(recipe), recipe.train
    if train.metric_for_best_model is None:
        return BestMetric(algorithm.measure, algorithm.better)
    name, known = train.metric_for_best_model.removeprefix(PREFIX), given(algorithm)
    data = part(recipe, Data)
    apart = sorted(key for key in known if data and data.measures_apart() and name.endswith(f"_{key}"))
    better = known.get(name) or next((known[key] for key in apart), None)
    if train.greater_is_better is not None:
        better = "higher" if train.greater_is_better else "lower"
    if better is None:
        raise no_metric(
            f"`{name}` is no metric that this algorithm says its evaluations give",
            known,
            "name one of these, or set `train.greater_is_better` where evaluations give it too",
        )
    return BestMetric(name, better, name in known)


def given(algorithm: DataAlgorithm) -> dict[str, str]:
    """Return the metrics that evaluations of an algorithm are known to give, and which way each improves."""
    return {algorithm.measure: algorithm.better, **algorithm.evaluation_metrics()}


def check_recipe(recipe: Recipe) -> None:
    """Raise RecipeError where nobody says which way the metric improves that the recipe names."""
    best_metric(recipe)


def check_given(name: str, found: Collection[str]) -> None:
    """Raise RecipeError where an evaluation does not give a metric."""
    if name not in found:
        raise no_metric(f"evaluations here do not give `{name}`, but", found, "name one of these")


def no_metric(why: str, known: Collection[str], fix: str) -> RecipeError:
    """Return the error of a metric that is not among those known."""
    return RecipeError(f"{why}: {', '.join(f'`{each}`' for each in known)}", key=KEY, fix=fix)

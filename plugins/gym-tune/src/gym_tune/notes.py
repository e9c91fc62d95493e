"""What people should know of a study before it begins, though nothing in it is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gym_tune.base_recipe import BaseRecipe
from gym_tune.metric import HELD_OUT, Metric
from gym_tune.space import Axis
from gym_tune.study import Study

LENGTHS = ("train.batch_size", "train.batch_tokens", "train.accumulate", "train.epochs", "train.max_steps")
MEASURED = (
    "data.",
    "model.path",
    "algorithm.reward",
)  #: beginnings of settings that say on what and with what is measured


def once_at_the_end(base: BaseRecipe, axes: Sequence[Axis], metric: Metric) -> bool:
    """Whether runs come to the metric no sooner than at their end."""
    return (
        metric.name.startswith(HELD_OUT)
        and base.recipe.train.eval_every is None
        and not any("train.eval_every" in base.changed(axis) for axis in axes)
    )


def notes(study: Study, base: BaseRecipe, axes: Sequence[Axis], metric: Metric, outside: str) -> Iterator[str]:
    """Yield them; `outside` is the first key whose own value is outside of the space, or an empty string."""
    if outside:
        yield f"the recipe's own `{outside}` is outside of the space, so its own values are not tried"
    # a loss is what the algorithm makes of its own options, a reward is not
    measured = (*MEASURED, *(("algorithm.",) if metric.direction == "minimize" else ()))
    changing = _keys(base, axes, measured)
    if study.metric is None and changing:
        why = f"{changing} may change what `{metric.name}` measures, and not only how well a run does"
        yield f"{why}: name a `metric` that stays the same"
    if study.pruner.prunes and once_at_the_end(base, axes, metric):
        yield "a run is evaluated once, at its end, so nothing can be pruned: set `train.eval_every`"
    elif study.pruner.prunes and (longer := _keys(base, axes, LENGTHS)):
        yield f"trials are pruned by their values at the same step, and with other {longer} a step is another share of a run"


def _keys(base: BaseRecipe, axes: Sequence[Axis], beginnings: tuple[str, ...]) -> str:
    """Return the keys of the space that change such settings, as text."""
    found = [axis.key for axis in axes if any(key.startswith(beginnings) for key in base.changed(axis))]
    return ", ".join(f"`{key}`" for key in found)

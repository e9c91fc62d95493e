"""Checks that return values of plugin code have the types that the kind promises."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from numbers import Real

import torch
from torch import Tensor

from gym_core import PluginError
from gym_optim.promises import named as named
from gym_optim.promises import promised as promised
from gym_torch.metrics import OF_THE_LOOP, Metric, Metrics


def number(found: object, by: str, key: str) -> float:
    """Return a number. Raises PluginError where it is none."""
    return float(found) if isinstance(found, Real) else promised(found, float, by, key)


def scalar(found: object, by: str, key: str) -> Tensor | float:
    """Return a tensor without dimensions, or a number. Raises PluginError where it is neither."""
    match found:
        case Tensor(shape=()):
            return found
        case Tensor():
            why = f"{by} returned a tensor {list(found.shape)}, which is no scalar"
            raise PluginError(why, key=key, fix="return one number, or a tensor without dimensions")
        case _:
            return number(found, by, key)


def figures(found: object, measure: str) -> Mapping[str, float]:
    """Return what an evaluation measured. Raises PluginError unless these are numbers by name, with what training improves."""
    if isinstance(found, Mapping) and all(isinstance(value, Real) for value in found.values()) and measure in found:
        return {name: value if isinstance(value, int) else float(value) for name, value in found.items()}
    raise PluginError(
        f"the evaluation of this algorithm returned {found!r:.80}",
        key="algorithm",
        fix=f"return numbers by name, `{measure}` (the `measure` of the algorithm) among them; the log puts `eval_` before each",
    )


def loss(found: object, objective: object) -> tuple[Tensor, Metrics]:
    """Return loss and metrics of an objective. Raises PluginError unless the loss is a differentiable scalar."""
    match found:
        case (Tensor(shape=()) as total, Mapping() as metrics):
            bare = [name for name, metric in metrics.items() if not isinstance(metric, Metric)]
            why, fix = (
                f"the metric `{bare[0]}` as a bare number" if bare else "",
                "gym_torch.metrics.Mean, Ratio or Largest",
            )
            if not bare and torch.is_grad_enabled() and not total.requires_grad:
                why, fix = "a loss without a gradient", "what follows from `policy(batch)`, not detached"
        case _:
            why, fix = (
                "no pair of a scalar tensor and metrics",
                "the sum over the batch, and `{}` where nothing is to be logged",
            )
    if why:
        raise PluginError(f"{named(objective)}.loss returned {why}", key="algorithm", fix=f"return {fix}")
    check_names(metrics, f"{named(objective)}.loss")
    return total, metrics


def check_names(metrics: Collection[str], by: str, beside: Collection[str] = OF_THE_LOOP) -> None:
    """Raise PluginError where a metric has a name that is taken: by the loop itself, or by what is logged `beside` it."""
    for name in metrics:
        if name in beside:
            raise PluginError(
                f"{by} has the metric `{name}`, a name that is taken: one of the two would be lost",
                key="algorithm",
                fix=f"give it another name, such as `own/{name}`",
            )


def plain_data(found: object, by: str, key: str, holder: str = "checkpoint") -> object:
    """Return a state as plain data. Raises PluginError where JSON does not restore it unchanged."""

    def look(value: object, place: str) -> None:
        match value:
            case None | bool() | int() | float() | str():
                return
            case list() | tuple():
                for number, item in enumerate(value):
                    look(item, f"{place}[{number}]")
            case dict() if all(isinstance(name, str) for name in value):
                for name, item in value.items():
                    look(item, f"{place}.{name}" if place else name)
            case _:
                what = "a dict whose keys are no text" if isinstance(value, dict) else f"a {type(value).__name__}"
                raise PluginError(
                    f"{by} returned {what}{f' at `{place}`' if place else ''}, which no {holder} can hold",
                    key=key,
                    fix="return plain data: None, bool, int, float, str, list, and dict with text as keys",
                )

    look(found, "")
    return found

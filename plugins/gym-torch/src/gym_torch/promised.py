"""What the code of a plugin returns is held against what its kind promises, before the engine works with it."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import TypeVar

import torch
from torch import Tensor

from gym_core import Component, PluginError
from gym_torch.metrics import Metric, Metrics

T = TypeVar("T")


def promised(found: object, wanted: type[T], by: Component | str, key: str = "") -> T:
    """Return what `by` returned: the `build` of a component, or a function of this name.

    Raises PluginError where that is not what was promised: it names who returned it, and what it must be.
    """
    if isinstance(found, wanted):
        return found
    who = by if isinstance(by, str) else f"{named(by)}.build"
    raise PluginError(
        f"{who} returned a {type(found).__name__}, which is no {wanted.__name__}",
        key=key,
        fix=f"let it return a {f'{wanted.__module__}.{wanted.__qualname__}'.removeprefix('builtins.')}",
    )


def named(thing: object) -> str:
    """Return the class of an object as errors write it."""
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def number(found: object, by: str, key: str) -> float:
    """Return a number. Raises PluginError where it is none."""
    return float(found) if isinstance(found, Real) else promised(found, float, by, key)


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
    """Return what an objective made of a batch. Raises PluginError unless it is a scalar to go back from, and its metrics."""
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
    return total, metrics

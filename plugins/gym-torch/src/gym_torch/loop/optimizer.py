"""The optimizer of a run, built over what is trained, and checked."""

from __future__ import annotations

from typing import Any

import torch

from gym_core import GymError, PluginError, Recipe, Train
from gym_optim.config import AdamW
from gym_optim.kinds import Optimizer
from gym_optim.promises import named, promised
from gym_torch.kinds import part
from gym_torch.loop import checks


def optimizer_of(
    recipe: Recipe, groups: list[dict[str, Any]], train: Train, processes: int
) -> tuple[Optimizer, torch.optim.Optimizer]:
    """Return the optimizer that a recipe names, else AdamW, and what it builds over groups of named parameters.

    Raises what `build_optimizer` raises, and RecipeError for what the optimizer cannot do in this run.
    """
    config = part(recipe, Optimizer) or AdamW()
    built = build_optimizer(config, groups, train.learning_rate)
    checks.optimizer(config, built, recipe, train, processes)
    return config, built


def build_optimizer(optimizer: Optimizer, groups: list[dict[str, Any]], learning_rate: float) -> torch.optim.Optimizer:
    """Build an optimizer over groups of named parameters.

    Raises GymError where there is nothing to train, and PluginError where what is built leaves a parameter out, which would
    never train, or has one that it was not given.
    """
    if not groups:
        raise GymError("nothing is trained: every weight is frozen", key="adapter")
    given = {parameter: name for group in groups for name, parameter in group["params"]}  # before torch changes them
    found = optimizer.build(parameters=groups, learning_rate=learning_rate)
    built = promised(found, torch.optim.Optimizer, optimizer, "optimizer")
    held = {parameter for group in built.param_groups for parameter in group["params"]}
    if held != given.keys():
        left = [name for parameter, name in given.items() if parameter not in held]
        why = (
            f"leaves {len(left)} of {len(given)} parameters out, such as {left[0]}"
            if left
            else f"has {len(held) - len(given)} parameters that it was not given"
        )
        raise PluginError(
            f"what {named(optimizer)}.build returned {why}",
            key="optimizer",
            fix="have each parameter of `parameters` in one of its `param_groups`, and no other",
        )
    for group in built.param_groups:
        group.setdefault("initial_lr", group["lr"])
    return built

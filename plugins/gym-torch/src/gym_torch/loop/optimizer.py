"""The optimizer of a run, over what is trained."""

from __future__ import annotations

from typing import Any

import torch

from gym_core import GymError, PluginError
from gym_optim.kinds import Optimizer
from gym_optim.promises import named, promised
from gym_torch.model.parameter_groups import groups_of
from gym_torch.policy import Policy


def build_optimizer(optimizer: Optimizer, policy: Policy[Any], learning_rate: float) -> torch.optim.Optimizer:
    """Build the optimizer over what is trained, in named groups by role; vectors do not decay.

    Raises PluginError where what it builds leaves a parameter out, which would never train, or has one that it was not given.
    """
    groups = groups_of(policy.model, policy)
    if not groups:
        raise GymError("nothing is trained: every weight is frozen", key="adapter")
    return built_over(optimizer, groups, learning_rate)


def built_over(optimizer: Optimizer, groups: list[dict[str, Any]], learning_rate: float) -> torch.optim.Optimizer:
    """Build the optimizer over groups of named parameters. Raises PluginError as `build_optimizer` does."""
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

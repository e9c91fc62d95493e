"""The optimizer of a run, over what is trained."""

from __future__ import annotations

from typing import Any

import torch

from gym_core import GymError
from gym_optim.kinds import Optimizer
from gym_torch.model.parameter_groups import groups_of
from gym_torch.policy import Policy
from gym_torch.promised import promised


def build_optimizer(optimizer: Optimizer, policy: Policy[Any], learning_rate: float) -> torch.optim.Optimizer:
    """Build the optimizer over what is trained, in named groups by role; vectors do not decay."""
    groups = groups_of(policy.model, policy)
    if not groups:
        raise GymError("nothing is trained: every weight is frozen", key="adapter")
    found = optimizer.build(parameters=groups, learning_rate=learning_rate)
    built = promised(found, torch.optim.Optimizer, optimizer, "optimizer")
    for group in built.param_groups:
        group.setdefault("initial_lr", group["lr"])
    return built

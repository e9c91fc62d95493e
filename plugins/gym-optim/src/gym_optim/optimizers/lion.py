"""Lion (arXiv:2302.06675, algorithm 2): the sign of an interpolated momentum."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from gym_optim import config
from gym_optim.base import PerParameterOptimizer, State


class Lion(PerParameterOptimizer):
    """Every weight moves by the learning rate; half the state of AdamW, and about a tenth of its learning rate."""

    options = config.Lion
    default_lr: ClassVar[float] = 1e-4

    def update(self, parameter: Tensor, gradient: Tensor, state: State, group: dict[str, Any]) -> None:
        """Take a step."""
        beta1, beta2 = group["betas"]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter)
        direction = state["exp_avg"].lerp(gradient, 1 - beta1).sign_()
        parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(direction, alpha=-group["lr"])
        state["exp_avg"].lerp_(gradient, 1 - beta2)

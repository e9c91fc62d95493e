"""Gradient descent as torch has it, with a momentum in fp32 whatever the parameters are."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gym_optim import config
from gym_optim.base import PerParameterOptimizer, State


class SGD(PerParameterOptimizer):
    """Gradient descent, with momentum where it is asked for."""

    options = config.SGD

    def update(self, parameter: Tensor, gradient: Tensor, state: State, group: dict[str, Any]) -> None:
        """Take a step."""
        if group["weight_decay"]:
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
        if group["momentum"]:
            if "momentum_buffer" in state:
                state["momentum_buffer"].mul_(group["momentum"]).add_(gradient)
            else:
                state["momentum_buffer"] = gradient.clone()
            buffer = state["momentum_buffer"]
            gradient = gradient.add(buffer, alpha=group["momentum"]) if group["nesterov"] else buffer
        parameter.add_(gradient, alpha=-group["lr"])

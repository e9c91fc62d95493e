"""Gradient descent as torch has it, with a momentum in fp32 whatever the parameters are."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from gym_optim import config
from gym_optim.base import EachParameter, Parameters, State


class SGD(EachParameter):
    """Gradient descent, with momentum where it is asked for."""

    options = config.SGD
    whole: ClassVar[bool] = False

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        """Hold parameters; `weight_decay` is the share of each that is added to its gradient."""
        own = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        super().__init__(params, {"lr": lr} | own)

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

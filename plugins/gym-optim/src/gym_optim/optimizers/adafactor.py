"""Adafactor (arXiv:1804.04235): the second moment of a matrix kept as the means of its rows and columns, no first one.

torch.optim.Adafactor always scales the step by the size of the weights and caps it at 1/sqrt(t), so the learning rate
of a recipe means something else there; here the first is an option and the second is left to the schedule.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gym_optim import config
from gym_optim.base import PerParameterOptimizer, State
from gym_optim.parameter_roles import is_stack


class Adafactor(PerParameterOptimizer):
    """Four bytes for each row and column of a matrix; updates clipped to a root mean square of `d`."""

    options = config.Adafactor

    def update(self, parameter: Tensor, gradient: Tensor, state: State, group: dict[str, Any]) -> None:
        """Take a step."""
        epsilon1, epsilon2 = group["eps"]
        state["step"] = state.get("step", 0) + 1
        fresh = state["step"] ** group["beta2_decay"]  # 1 in the first step
        square = gradient.square().add_(epsilon1)
        if parameter.dim() < 2:
            update = gradient / _mean(state, "square", square, fresh).sqrt()
        else:
            rows = _mean(state, "rows", square.mean(-1), fresh)  # [..., rows]
            columns = _mean(state, "columns", square.mean(-2), fresh)  # [..., columns]
            scale = (rows / rows.mean(-1, keepdim=True)).rsqrt_().unsqueeze(-1)
            update = gradient * scale * columns.rsqrt().unsqueeze(-2)
        stack = is_stack(group, tuple(parameter.shape))
        over = (-2, -1) if stack else tuple(range(parameter.dim()))  # each expert's matrix has sizes of its own
        update /= (_size(update, over) / group["d"]).clamp_(min=1.0)
        step = group["lr"] * _size(parameter, over).clamp_(min=epsilon2) if group["scale_parameter"] else group["lr"]
        parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update.mul_(step))


def _mean(state: State, name: str, value: Tensor, fresh: float) -> Tensor:
    state[name] = state[name].lerp_(value, fresh) if name in state else value
    mean: Tensor = state[name]
    return mean


def _size(tensor: Tensor, over: tuple[int, ...]) -> Tensor:
    """Return the root mean square over some dimensions, which stay."""
    return tensor.square().mean(over, keepdim=True).sqrt()

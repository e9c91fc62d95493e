"""Adafactor (arXiv:1804.04235): the second moment of a matrix kept as the means of its rows and columns, no first one.

torch.optim.Adafactor always scales the step by the size of the weights and caps it at 1/sqrt(t), so the learning rate
of a recipe means something else there; here the first is an option and the second is left to the schedule.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gym_optim.base import EachParameter, Parameters, State


class Adafactor(EachParameter):
    """Four bytes for each row and column of a matrix; updates clipped to a root mean square of `clip`."""

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        decay: float = 0.8,
        clip: float = 1.0,
        epsilon: float = 1e-30,
        relative: bool = False,
        floor: float = 1e-3,
        weight_decay: float = 0.0,
    ) -> None:
        """Hold parameters.

        Args:
            params: tensors, named tensors or groups of them.
            lr: learning rate; with `relative` it is times the root mean square of the weight, at least `floor`.
            decay: at step t the running mean of squares takes `t ** -decay` of the new one.
            clip: largest root mean square of an update, before the learning rate.
            epsilon: added to squared gradients.
            relative: whether the step grows with the weight.
            floor: least root mean square of a weight, with `relative`.
            weight_decay: share of the weight taken away per step, times the learning rate.

        """
        options = {"lr": lr, "decay": decay, "clip": clip, "epsilon": epsilon, "relative": relative, "floor": floor}
        super().__init__(params, options | {"weight_decay": weight_decay})

    def update(self, parameter: Tensor, gradient: Tensor, state: State, group: dict[str, Any]) -> None:
        """Take a step."""
        state["step"] = state.get("step", 0) + 1
        fresh = state["step"] ** -group["decay"]  # 1 in the first step
        square = gradient.square().add_(group["epsilon"])
        if parameter.dim() < 2:
            update = gradient / _mean(state, "square", square, fresh).sqrt()
        else:
            rows = _mean(state, "rows", square.mean(-1), fresh)  # [..., rows]
            columns = _mean(state, "columns", square.mean(-2), fresh)  # [..., columns]
            scale = (rows / rows.mean(-1, keepdim=True)).rsqrt_().unsqueeze(-1)
            update = gradient * scale * columns.rsqrt().unsqueeze(-2)
        update /= (_size(update) / group["clip"]).clamp_(min=1.0)
        step = group["lr"] * _size(parameter).clamp_(min=group["floor"]) if group["relative"] else group["lr"]
        parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update.mul_(step))


def _mean(state: State, name: str, value: Tensor, fresh: float) -> Tensor:
    state[name] = state[name].lerp_(value, fresh) if name in state else value
    mean: Tensor = state[name]
    return mean


def _size(tensor: Tensor) -> Tensor:
    """Return the root mean square, a scalar."""
    return tensor.square().mean().sqrt()

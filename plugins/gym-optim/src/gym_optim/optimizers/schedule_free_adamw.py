"""Schedule-Free AdamW (arXiv:2405.15682, algorithm 1): a running average of the iterates in place of a schedule.

Gradients are taken at y = (1 - beta1) z + beta1 x, where z are the iterates of AdamW and x is their average. The parameters hold
y while training, so that z and the second moment are all the state; `averaged` puts x in their place for a while.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from gym_optim import config
from gym_optim.base import BaseOptimizer, State, evaluate_closure, update_in_fp32


class Averaging(torch.optim.Optimizer):
    """Base of optimizers that train other weights than those to use."""

    @abstractmethod
    def averaged(self) -> AbstractContextManager[None]:
        """Have the parameters hold the weights to use, and afterwards what they held before, bit for bit."""


class ScheduleFreeAdamW(BaseOptimizer, Averaging):
    """AdamW that needs no decaying learning rate; give it a constant one with warm-up."""

    options = config.ScheduleFreeAdamW
    default_lr: ClassVar[float] = 2.5e-3
    counters: ClassVar[Mapping[str, Any]] = {"steps": 0, "top": 0.0, "sum": 0.0, "between": 0.0}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        loss = evaluate_closure(closure)
        for group in self.param_groups:
            group["between"] = group["between"] if group["steps"] else group["betas"][0]
            group["steps"] += 1
            group["top"] = max(group["top"], group["lr"])
            weight = group["steps"] ** group["power"] * group["top"] ** 2
            group["sum"] += weight
            group["share"] = weight / group["sum"] if group["sum"] else 0.0
            for parameter in group["params"]:
                if parameter.grad is not None:
                    update_in_fp32(_update, parameter, self.state[parameter], group)
            self._stay_between(group)
        return loss

    def _stay_between(self, group: dict[str, Any]) -> None:
        """Move y to where another beta1 has it between z and x, should a schedule have changed that; all of its parameters."""
        before, group["between"] = group["between"], group["betas"][0]
        if before != group["between"]:
            for parameter in group["params"]:
                if parameter in self.state:
                    _move(parameter, self.state[parameter]["z"], 1 - group["between"] / before)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Have the parameters hold the average x; takes the memory of one more copy of them."""
        held = {}
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter in self.state:
                        held[parameter] = parameter.detach().clone()
                        _move(parameter, self.state[parameter]["z"], 1 - 1 / group["between"])
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, before in held.items():
                    parameter.copy_(before)


def _update(parameter: Tensor, gradient: Tensor, state: State, group: dict[str, Any]) -> None:
    beta1, beta2 = group["between"], group["betas"][1]
    if not state:
        state |= {"z": parameter.clone(), "exp_avg_sq": torch.zeros_like(parameter), "step": 0}
    state["step"] += 1
    state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    spread = (state["exp_avg_sq"] / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
    move = (gradient / spread).add_(parameter, alpha=group["weight_decay"])
    # x' = (1 - share) x + share z' and y' = (1 - beta1) z' + beta1 x', written in y and z alone.
    parameter.lerp_(state["z"], group["share"])
    parameter.add_(move, alpha=group["lr"] * (beta1 * (1 - group["share"]) - 1))
    state["z"].add_(move, alpha=-group["lr"])


def _move(parameter: Tensor, z: Tensor, share: float) -> None:
    """Move a parameter a share of its way to z, in the dtype of z."""
    parameter.copy_(parameter.to(z.dtype).lerp(z, share))

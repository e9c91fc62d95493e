"""Schedule-Free AdamW (arXiv:2405.15682, algorithm 1): a running average of the iterates in place of a schedule.

Gradients are taken at y = (1 - beta1) z + beta1 x, where z are the iterates of AdamW and x is their average. The parameters hold
y while training, so that z and the second moment are all the state; `averaged` puts x in their place for a while.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from gym_optim.base import Parameters, value_of


class Averaging(torch.optim.Optimizer):
    """Base of optimizers that train other weights than those to use."""

    @abstractmethod
    def averaged(self) -> AbstractContextManager[None]:
        """Have the parameters hold the weights to use, and afterwards what they held before, bit for bit."""


class ScheduleFreeAdamW(Averaging):
    """AdamW that needs no decaying learning rate; give it a constant one with warm-up."""

    def __init__(
        self,
        params: Parameters,
        lr: float = 2.5e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        power: float = 0.0,
    ) -> None:
        """Hold parameters; in the average, step t counts `t ** power` times the square of the largest rate so far."""
        defaults = {"lr": lr, "beta1": beta1, "beta2": beta2, "epsilon": epsilon, "weight_decay": weight_decay}
        super().__init__(params, defaults | {"power": power, "steps": 0, "top": 0.0, "sum": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        loss = value_of(closure)
        for group in self.param_groups:
            group["steps"] += 1
            group["top"] = max(group["top"], group["lr"])
            weight = group["steps"] ** group["power"] * group["top"] ** 2
            group["sum"] += weight
            share = weight / group["sum"] if group["sum"] else 0.0
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state |= {"z": parameter.clone(), "exp_avg_sq": torch.zeros_like(parameter), "step": 0}
                state["step"] += 1
                state["exp_avg_sq"].mul_(group["beta2"]).addcmul_(
                    parameter.grad, parameter.grad, value=1 - group["beta2"]
                )
                spread = (state["exp_avg_sq"] / (1 - group["beta2"] ** state["step"])).sqrt_().add_(group["epsilon"])
                move = (parameter.grad / spread).add_(parameter, alpha=group["weight_decay"])
                # x' = (1 - share) x + share z' and y' = (1 - beta1) z' + beta1 x', written in y and z alone.
                parameter.lerp_(state["z"], share)
                parameter.add_(move, alpha=group["lr"] * (group["beta1"] * (1 - share) - 1))
                state["z"].add_(move, alpha=-group["lr"])
        return loss

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Have the parameters hold the average x; takes the memory of one more copy of them."""
        held = {}
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter in self.state:
                        held[parameter] = parameter.detach().clone()
                        parameter.lerp_(self.state[parameter]["z"], 1 - 1 / group["beta1"])
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, before in held.items():
                    parameter.copy_(before)


def to_use(optimizer: torch.optim.Optimizer) -> AbstractContextManager[None]:
    """Have the parameters of any optimizer hold the weights to use."""
    return optimizer.averaged() if isinstance(optimizer, Averaging) else nullcontext()

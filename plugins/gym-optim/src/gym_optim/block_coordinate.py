"""AdamW on a part of the layers at a time: LISA (arXiv:2403.17919) and BAdam (arXiv:2404.02827).

A gradient that is not used goes as soon as it is there, and a layer that rests has no state. A layer is told by the path of
its parameters up to the first number; which ones work follows from the number of steps alone, so that a resumed run
goes on with the same.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from gym_core import GymError
from gym_optim.adam import adamw_step
from gym_optim.base import BaseOptimizer, Parameters, call_when_ready, evaluate_closure
from gym_optim.parameter_roles import block_of


class BlockCoordinate(BaseOptimizer):
    """Base: `choose_blocks` says which blocks of layers work in a period."""

    counters: ClassVar[Mapping[str, Any]] = {"steps": 0}
    interval: ClassVar[str]
    """Option that says how many steps a period has."""

    def __init__(self, params: Parameters, lr: float | None = None, **options: Any) -> None:
        """Hold named parameters.

        Raises ValueError for an option out of range, and GymError for parameters without names, and where several processes
        train: their gradients would be exchanged before it is known which are needed, and the norm over all would be another.
        """
        self._block: dict[Tensor, str | None] = {}
        super().__init__(params, lr, **options)
        several = torch.distributed.is_available() and torch.distributed.is_initialized()
        if several and torch.distributed.get_world_size() > 1:
            raise GymError(f"{type(self).__name__} trains in one process", key="optimizer", fix="set --nproc 1")
        self._period, self._working = -1, frozenset[str]()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add named parameters, whose blocks work when their turn comes. Raises what `__init__` raises of them."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if "param_names" not in group:
            raise GymError(
                f"{type(self).__name__} tells layers by the names of parameters",
                key="params",
                fix="give the model, or (name, parameter)",
            )
        for name, parameter in zip(group["param_names"], group["params"], strict=True):
            self._block[parameter] = self.block(group, name)
            call_when_ready(parameter, self._gradient_ready)
        self._period = -1  # what works is chosen among all blocks there are

    def block(self, group: dict[str, Any], name: str) -> str | None:
        """Return the block of a parameter: its layer, or "" for what stands outside; None for what rests all the time."""
        return block_of(name)

    @abstractmethod
    def choose_blocks(self, period: int, blocks: list[str]) -> frozenset[str]:
        """Return the blocks that work; `blocks` are those of layers in their order."""

    def layers(self) -> list[str]:
        """Return the blocks of layers in their order."""
        numbered = {block for block in self._block.values() if block and block[-1].isdigit()}
        return sorted(numbered, key=_place)

    def active_blocks(self) -> frozenset[str]:
        """Return the blocks that work in the coming step."""
        period = self.param_groups[0]["steps"] // self.param_groups[0][self.interval]
        if period != self._period:
            self._period, self._working = period, self.choose_blocks(period, self.layers())
        return self._working

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update what works and has a gradient; forget the state of what rests."""
        loss, working = evaluate_closure(closure), self.active_blocks()
        for parameter in [held for held in self.state if self._block[held] not in working]:
            del self.state[parameter]
        for group in self.param_groups:
            ready = [weight for weight in group["params"] if self._block[weight] in working]
            adamw_step([weight for weight in ready if weight.grad is not None], self.state, group)
            group["steps"] += 1
        return loss

    def _gradient_ready(self, parameter: Tensor) -> None:
        if self._block[parameter] not in self.active_blocks():
            parameter.grad = None


def _place(block: str) -> tuple[str, int]:
    """Return what sorts layers by their numbers, in whatever groups their parameters come."""
    stack, _, number = block.rpartition(".")
    return stack, int(number)

"""AdamW on a part of the layers at a time: LISA (arXiv:2403.17919) and BAdam (arXiv:2404.02827).

A gradient that is not used goes as soon as it is there, and a layer that rests has no state. A layer is told by the path of
its parameters up to the first number; which ones work follows from the number of steps alone, so that a resumed run
goes on with the same.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from random import Random
from typing import Any, Literal

import torch
from torch import Tensor

from gym_core import GymError
from gym_optim.base import Parameters, adamw_step, refuse_shards, value_of
from gym_optim.roles import block_of

Order = Literal["ascending", "descending", "random", "fixed"]


class Blockwise(torch.optim.Optimizer):
    """Base: `active` says which blocks of layers work in a period of `interval` steps."""

    def __init__(self, params: Parameters, defaults: dict[str, Any]) -> None:
        """Hold named parameters.

        Raises GymError for parameters without names, and where several processes train: their gradients would be
        exchanged before it is known which are needed, and the norm over all would be another one.
        """
        super().__init__(params, {**defaults, "steps": 0, "fused": True})
        self._block: dict[Tensor, str] = {}
        for group in self.param_groups:
            if "param_names" not in group:
                raise GymError("tells layers by the names of parameters", key="optimizer", fix="give (name, parameter)")
            for name, parameter in zip(group["param_names"], group["params"], strict=True):
                refuse_shards(self, parameter)
                self._block[parameter] = block_of(name)
                parameter.register_post_accumulate_grad_hook(self._arrived)
        several = torch.distributed.is_available() and torch.distributed.is_initialized()
        if several and torch.distributed.get_world_size() > 1:
            raise GymError(f"{type(self).__name__} trains in one process", key="optimizer", fix="set --nproc 1")
        self._period, self._working = -1, frozenset[str]()

    @abstractmethod
    def active(self, period: int, blocks: list[str]) -> frozenset[str]:
        """Return the blocks that work; `blocks` are those of layers in their order, and "" is what stands outside."""

    def working(self) -> frozenset[str]:
        """Return the blocks that work in the coming step."""
        period = self.param_groups[0]["steps"] // self.param_groups[0]["interval"]
        if period != self._period:
            blocks = sorted({*self._block.values()} - {""}, key=_place)
            self._period, self._working = period, self.active(period, blocks)
        return self._working

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update what works and has a gradient; forget the state of what rests."""
        loss, working = value_of(closure), self.working()
        for parameter in [held for held in self.state if self._block[held] not in working]:
            del self.state[parameter]
        for group in self.param_groups:
            ready = [weight for weight in group["params"] if self._block[weight] in working]
            adamw_step([weight for weight in ready if weight.grad is not None], self.state, group)
            group["steps"] += 1
        return loss

    def _arrived(self, parameter: Tensor) -> None:
        if self._block[parameter] not in self.working():
            parameter.grad = None


def _place(block: str) -> tuple[str, int]:
    """Return what sorts layers by their numbers, in whatever groups their parameters come."""
    stack, _, number = block.rpartition(".")
    return stack, int(number)


class LISA(Blockwise):
    """Everything outside the layers works all the time, and `layers` of them drawn anew every `interval` steps."""

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        layers: int = 2,
        interval: int = 20,
        seed: int = 0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        """Hold named parameters; `seed` is that of the draws, the other options are AdamW's."""
        adam = {"lr": lr, "beta1": beta1, "beta2": beta2, "epsilon": epsilon, "weight_decay": weight_decay}
        super().__init__(params, adam | {"layers": layers, "interval": interval, "seed": seed})

    def active(self, period: int, blocks: list[str]) -> frozenset[str]:
        """Draw the layers of a period."""
        options = self.param_groups[0]
        drawn = Random(f"{options['seed']}/{period}").sample(blocks, min(options["layers"], len(blocks)))
        return frozenset({"", *drawn})


class BAdam(Blockwise):
    """One layer after another works for `interval` steps; what stands outside the layers comes as one more block."""

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        interval: int = 50,
        order: Order = "ascending",
        start: int | None = None,
        seed: int = 0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        """Hold named parameters. Raises GymError for a block to begin with that is not there.

        Args:
            params: named tensors or groups of them.
            lr: learning rate.
            interval: steps for which a block works.
            order: of the blocks, in each round over all of them; `fixed` stays with the first.
            start: number of the block to begin with, for other orders than `random`.
            seed: of the order `random`.
            beta1: decay of the running mean of the gradient.
            beta2: decay of the running mean of its square.
            epsilon: added to the denominator.
            weight_decay: share of each parameter taken away per step, times the learning rate.

        """
        adam = {"lr": lr, "beta1": beta1, "beta2": beta2, "epsilon": epsilon, "weight_decay": weight_decay}
        super().__init__(params, adam | {"interval": interval, "order": order, "start": start, "seed": seed})
        count = len({*self._block.values()})
        if start is not None and start >= count:
            raise GymError(f"there is no block {start}: they are {count}", key="optimizer.start", fix="count from 0")

    def active(self, period: int, blocks: list[str]) -> frozenset[str]:
        """Return the one whose turn it is."""
        options = self.param_groups[0]
        every = [*blocks, *([""] if "" in self._block.values() else [])]
        round_, turn = divmod(period, len(every))
        if options["order"] == "random":
            Random(f"{options['seed']}/{round_}").shuffle(every)
            return frozenset({every[turn]})
        first = options["start"] if options["start"] is not None else -(options["order"] == "descending")
        turn = {"ascending": turn, "descending": -turn, "fixed": 0}[options["order"]]
        return frozenset({every[(first + turn) % len(every)]})

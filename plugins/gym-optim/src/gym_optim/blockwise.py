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
from gym_optim import config
from gym_optim.base import Checked, Parameters, adamw_step, value_of
from gym_optim.roles import EMBEDDING, HEAD, MATRICES, badam_block, block_of

Order = Literal["ascending", "descending", "random", "fixed"]


class Blockwise(Checked):
    """Base: `active` says which blocks of layers work in a period of `interval` steps."""

    def __init__(self, params: Parameters, defaults: dict[str, Any]) -> None:
        """Hold named parameters.

        Raises ValueError for an option out of range, and GymError for parameters without names, and where several processes
        train: their gradients would be exchanged before it is known which are needed, and the norm over all would be another.
        """
        super().__init__(params, {**defaults, "steps": 0})
        self._block: dict[Tensor, str | None] = {}
        for group in self.param_groups:
            if "param_names" not in group:
                raise GymError(
                    f"{type(self).__name__} tells layers by the names of parameters",
                    key="params",
                    fix="give the model, or (name, parameter)",
                )
            for name, parameter in zip(group["param_names"], group["params"], strict=True):
                self._block[parameter] = self.block(group, name)
                parameter.register_post_accumulate_grad_hook(self._arrived)
        several = torch.distributed.is_available() and torch.distributed.is_initialized()
        if several and torch.distributed.get_world_size() > 1:
            raise GymError(f"{type(self).__name__} trains in one process", key="optimizer", fix="set --nproc 1")
        self._period, self._working = -1, frozenset[str]()

    def block(self, group: dict[str, Any], name: str) -> str | None:
        """Return the block of a parameter: its layer, or "" for what stands outside; None for what rests all the time."""
        return block_of(name)

    @abstractmethod
    def active(self, period: int, blocks: list[str]) -> frozenset[str]:
        """Return the blocks that work; `blocks` are those of layers in their order."""

    def layers(self) -> list[str]:
        """Return the blocks of layers in their order."""
        numbered = {block for block in self._block.values() if block and block[-1].isdigit()}
        return sorted(numbered, key=_place)

    def working(self) -> frozenset[str]:
        """Return the blocks that work in the coming step."""
        period = self.param_groups[0]["steps"] // self.param_groups[0]["interval"]
        if period != self._period:
            self._period, self._working = period, self.active(period, self.layers())
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

    options = config.LISA

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        layers: int = 2,
        interval: int = 20,
        seed: int = 0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        """Hold named parameters; `seed` is that of the draws, the other options are AdamW's."""
        adam = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, adam | {"layers": layers, "interval": interval, "seed": seed})

    def active(self, period: int, blocks: list[str]) -> frozenset[str]:
        """Draw the layers of a period."""
        options = self.param_groups[0]
        drawn = Random(f"{options['seed']}/{period}").sample(blocks, min(options["layers"], len(blocks)))
        return frozenset({"", *drawn})


class BAdam(Blockwise):
    """One layer after another works for `interval` steps; embeddings and head rest, or are blocks of their own."""

    options = config.BAdam

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        interval: int = 50,
        order: Order = "ascending",
        start: int | None = None,
        include_embedding: bool = False,
        include_lm_head: bool = False,
        seed: int = 0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        """Hold named parameters.

        Args:
            params: named tensors or groups of them.
            lr: learning rate.
            interval: steps for which a block works.
            order: of the blocks, in each round over all of them; `fixed` stays with the first.
            start: number of the block to begin with, for other orders than `random`.
            include_embedding: whether embeddings take turns too, as one block; needs groups with roles.
            include_lm_head: whether what else stands outside the layers does: head, last norm, a head of a critic.
            seed: of the order `random`.
            betas: decay of the running means of the gradient and of its square.
            eps: added to the denominator.
            weight_decay: share of each parameter taken away per step, times the learning rate.

        Raises:
            GymError: no block is there to begin with or at all, or matrices outside the layers would never train.
            ValueError: an option is out of range.

        """
        adam = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        outside = {"include_embedding": include_embedding, "include_lm_head": include_lm_head}
        super().__init__(params, adam | outside | {"interval": interval, "order": order, "start": start, "seed": seed})
        blocks = self._turns(self.layers())
        if not blocks or (include_embedding and EMBEDDING not in blocks):
            missing = f"no {EMBEDDING}" if include_embedding else "no layer"
            fix = (
                "give the model, or groups with roles"
                if include_embedding
                else "set include_embedding or include_lm_head"
            )
            raise GymError(f"BAdam finds {missing} among the parameters", key="optimizer", fix=fix)
        if start is not None and start >= len(blocks):
            raise GymError(
                f"there is no block {start}: they are {len(blocks)}", key="optimizer.start", fix="count from 0"
            )

    def block(self, group: dict[str, Any], name: str) -> str | None:
        """Return the block of a parameter. Raises GymError for a matrix outside the layers that would never train."""
        found = badam_block(group, name)
        if found is None and group.get("role") in MATRICES:
            raise GymError(
                f"{name} stands outside the layers, and would never train",
                key="optimizer.include_lm_head",
                fix="set it to true, or take another optimizer",
            )
        return found

    def _turns(self, layers: list[str]) -> list[str]:
        """Return the blocks in ascending order."""
        held = {*self._block.values()}
        return [*({EMBEDDING} & held), *layers, *({HEAD} & held)]

    def active(self, period: int, blocks: list[str]) -> frozenset[str]:
        """Return the one whose turn it is."""
        options, every = self.param_groups[0], self._turns(blocks)
        round_, turn = divmod(period, len(every))
        if options["order"] == "random":
            Random(f"{options['seed']}/{round_}").shuffle(every)
            return frozenset({every[turn]})
        first = options["start"] if options["start"] is not None else -(options["order"] == "descending")
        turn = {"ascending": turn, "descending": -turn, "fixed": 0}[options["order"]]
        return frozenset({every[(first + turn) % len(every)]})

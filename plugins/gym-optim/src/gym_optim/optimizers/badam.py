"""BAdam (arXiv:2404.02827): AdamW on one layer after another."""

from __future__ import annotations

from random import Random
from typing import Any, Literal

from gym_core import GymError
from gym_optim import config
from gym_optim.base import Parameters
from gym_optim.block_coordinate import Blockwise
from gym_optim.parameter_roles import EMBEDDING, HEAD, MATRICES, badam_block

Order = Literal["ascending", "descending", "random", "fixed"]


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

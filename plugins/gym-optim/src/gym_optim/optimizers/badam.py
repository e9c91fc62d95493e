"""BAdam (arXiv:2404.02827): AdamW on one layer after another."""

from __future__ import annotations

from random import Random
from typing import Any, ClassVar

from gym_core import GymError
from gym_optim import config
from gym_optim.base import Parameters
from gym_optim.block_coordinate import BlockCoordinate
from gym_optim.parameter_roles import EMBEDDING, HEAD, MATRICES, badam_block


class BAdam(BlockCoordinate):
    """One layer after another works for `switch_interval` steps; embeddings and head rest, or are blocks of their own."""

    options = config.BAdam
    interval: ClassVar[str] = "switch_interval"

    def __init__(self, params: Parameters, lr: float | None = None, **options: Any) -> None:
        """Hold named parameters.

        Raises GymError too where there is no such block, or none at all, and where matrices outside the layers would never train.
        """
        super().__init__(params, lr, **options)
        start_block, include_embedding = self.defaults["start_block"], self.defaults["include_embedding"]
        blocks = self.order_of_blocks(self.layers())
        if not blocks or (include_embedding and EMBEDDING not in blocks):
            missing = f"no {EMBEDDING}" if include_embedding else "no layer"
            fix = (
                "give the model, or groups with roles"
                if include_embedding
                else "set include_embedding or include_lm_head"
            )
            raise GymError(f"BAdam finds {missing} among the parameters", key="optimizer", fix=fix)
        if start_block is not None and start_block >= len(blocks):
            raise GymError(
                f"there is no block {start_block}: they are {len(blocks)}",
                key="optimizer.start_block",
                fix="count from 0",
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

    def order_of_blocks(self, layers: list[str]) -> list[str]:
        """Return the blocks in ascending order."""
        held = {*self._block.values()}
        return [*({EMBEDDING} & held), *layers, *({HEAD} & held)]

    def choose_blocks(self, period: int, blocks: list[str]) -> frozenset[str]:
        """Return the one whose turn it is."""
        options, every = self.param_groups[0], self.order_of_blocks(blocks)
        round_, turn = divmod(period, len(every))
        if options["switch_mode"] == "random":
            Random(f"{options['seed']}/{round_}").shuffle(every)
            return frozenset({every[turn]})
        first = (
            options["start_block"] if options["start_block"] is not None else -(options["switch_mode"] == "descending")
        )
        turn = {"ascending": turn, "descending": -turn, "fixed": 0}[options["switch_mode"]]
        return frozenset({every[(first + turn) % len(every)]})

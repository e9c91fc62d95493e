"""LISA (arXiv:2403.17919): AdamW on a few layers, drawn anew every so many steps."""

from __future__ import annotations

from random import Random
from typing import ClassVar

from gym_optim import config
from gym_optim.block_coordinate import BlockCoordinate


class LISA(BlockCoordinate):
    """Everything outside the layers works all the time, `activated_layers` of them for `interval_steps` steps each."""

    options = config.LISA
    interval: ClassVar[str] = "interval_steps"

    def choose_blocks(self, period: int, blocks: list[str]) -> frozenset[str]:
        """Draw the layers of a period."""
        options = self.param_groups[0]
        drawn = Random(f"{options['seed']}/{period}").sample(blocks, min(options["activated_layers"], len(blocks)))
        return frozenset({"", *drawn})

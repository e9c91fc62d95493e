"""LISA (arXiv:2403.17919): AdamW on a few layers, drawn anew every so many steps."""

from __future__ import annotations

from random import Random

from gym_optim import config
from gym_optim.base import Parameters
from gym_optim.block_coordinate import Blockwise


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

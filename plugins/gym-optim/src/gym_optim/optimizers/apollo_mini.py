"""APOLLO-Mini (arXiv:2412.05270): APOLLO of rank 1 with one factor for a whole matrix."""

from __future__ import annotations

from typing import Any

from gym_optim import config
from gym_optim.base import Parameters
from gym_optim.optimizers.apollo import APOLLO


class APOLLOMini(APOLLO):
    """APOLLO of rank 1 with one factor for a whole matrix: the state of gradient descent, nearly."""

    options = config.APOLLOMini

    def __init__(self, params: Parameters, lr: float = 1e-2, scale: float = 128.0, **options: Any) -> None:
        """Hold parameters; the other options are those of `APOLLO` but for `rank` and `per`."""
        super().__init__(params, lr=lr, rank=1, scale=scale, per="tensor", **options)

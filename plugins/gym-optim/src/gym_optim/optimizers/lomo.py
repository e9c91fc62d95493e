"""LOMO (arXiv:2306.09782): gradient descent in the backward pass, without any state."""

from __future__ import annotations

from typing import Any

from gym_optim import config
from gym_optim.base import Parameters, takes_options
from gym_optim.in_backward import InBackward
from gym_optim.optimizers.sgd import SGD


@takes_options(config.LOMO)
def lomo(params: Parameters, lr: float = 1e-3, **options: Any) -> InBackward:
    """Return LOMO."""
    return InBackward(SGD(params, lr, **config.LOMO.torch_options(options)))

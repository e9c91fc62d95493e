"""AdaLomo (arXiv:2310.10195): Adafactor with steps relative to the weights, in the backward pass."""

from __future__ import annotations

from typing import Any

from gym_optim import config
from gym_optim.base import Parameters, takes_options
from gym_optim.in_backward import InBackward
from gym_optim.optimizers.adafactor import Adafactor


@takes_options(config.AdaLomo)
def adalomo(params: Parameters, lr: float = 1e-3, **options: Any) -> InBackward:
    """Return AdaLomo."""
    return InBackward(Adafactor(params, lr, scale_parameter=True, **config.AdaLomo.torch_options(options)))

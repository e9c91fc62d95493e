"""AdaLomo (arXiv:2310.10195): Adafactor with steps relative to the weights, in the backward pass."""

from __future__ import annotations

from typing import Any

from gym_optim import config
from gym_optim.base import Parameters
from gym_optim.in_backward import InBackward
from gym_optim.optimizers.adafactor import Adafactor


def adalomo(params: Parameters, lr: float = 1e-3, **options: Any) -> InBackward:
    """Return AdaLomo; options are those of `gym_optim.config.AdaLomo`."""
    return InBackward(Adafactor(params, lr, relative=True, **config.AdaLomo.torch_options(options)))

"""AdaLomo (arXiv:2310.10195): Adafactor with steps relative to the weights, in the backward pass."""

from __future__ import annotations

from gym_optim.base import Parameters
from gym_optim.in_backward import InBackward
from gym_optim.optimizers.adafactor import Adafactor


def adalomo(
    params: Parameters,
    lr: float = 1e-3,
    beta2_decay: float = -0.8,
    eps: tuple[float, float] = (1e-30, 1e-3),
    d: float = 1.0,
    weight_decay: float = 0.0,
) -> InBackward:
    """Return AdaLomo (arXiv:2310.10195): Adafactor with steps relative to the weights, in the backward pass."""
    return InBackward(Adafactor(params, lr, beta2_decay, eps, d, relative=True, weight_decay=weight_decay))

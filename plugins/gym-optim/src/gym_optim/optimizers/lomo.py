"""LOMO (arXiv:2306.09782): gradient descent in the backward pass, without any state."""

from __future__ import annotations

from gym_optim.base import Parameters
from gym_optim.in_backward import InBackward
from gym_optim.optimizers.sgd import SGD


def lomo(params: Parameters, lr: float = 1e-3, weight_decay: float = 0.0) -> InBackward:
    """Return LOMO (arXiv:2306.09782): gradient descent in the backward pass, without any state."""
    return InBackward(SGD(params, lr=lr, weight_decay=weight_decay))

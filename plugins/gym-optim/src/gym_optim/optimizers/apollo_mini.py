"""APOLLO-Mini (arXiv:2412.05270): APOLLO of rank 1 with one factor for a whole matrix."""

from __future__ import annotations

from gym_optim import config
from gym_optim.optimizers.apollo import APOLLO


class APOLLOMini(APOLLO):
    """The state of gradient descent, nearly."""

    options = config.APOLLOMini

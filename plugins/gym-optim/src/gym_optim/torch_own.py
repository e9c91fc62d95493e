"""Optimizers that torch has and keeps well, with the names of options that recipes use."""

from __future__ import annotations

from typing import Any

import torch


def adamw(
    parameters: Any, lr: float, beta1: float, beta2: float, epsilon: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Return AdamW in one kernel over parameter groups; a group may override any option, such as `weight_decay`."""
    return torch.optim.AdamW(
        parameters, lr=lr, betas=(beta1, beta2), eps=epsilon, weight_decay=weight_decay, fused=True
    )


def sgd(parameters: Any, lr: float, momentum: float, nesterov: bool, weight_decay: float) -> torch.optim.Optimizer:
    """Return gradient descent over parameter groups."""
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)

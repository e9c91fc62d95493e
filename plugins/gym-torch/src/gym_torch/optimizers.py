"""AdamW, as torch has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from gym_torch.config import AdamW


def adamw(config: AdamW, parameters: list[dict[str, Any]], learning_rate: float) -> torch.optim.Optimizer:
    """Return AdamW over parameter groups; a group may override any option, such as `weight_decay`."""
    return torch.optim.AdamW(
        parameters,
        lr=learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        fused=True,
    )

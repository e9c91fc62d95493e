"""Adam-mini (arXiv:2406.16793): one second moment for each block of weights whose curvature is alike.

Written from the paper. A block is a head of the projections to queries and keys, a row of every other matrix (a token
of the embedding), a whole vector. The rows of a head come from the model, not from its width divided by its heads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gym_optim import config
from gym_optim.base import PerParameterOptimizer, State


class AdamMini(PerParameterOptimizer):
    """Half the state of AdamW, with its learning rate."""

    options = config.AdamMini

    def update(self, parameter: Tensor, gradient: Tensor, state: State, group: dict[str, Any]) -> None:
        """Take a step."""
        beta1, beta2 = group["betas"]
        count = blocks(tuple(parameter.shape), group.get("head_dim"))
        if not state:
            state |= {"step": 0, "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": parameter.new_zeros(count)}
        state["step"] += 1
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].lerp_(gradient.square().view(count, -1).mean(-1), 1 - beta2)
        spread = (state["exp_avg_sq"] / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])  # [blocks]
        size = group["lr"] / spread.mul_(1 - beta1 ** state["step"])
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.view(count, -1).sub_(state["exp_avg"].view(count, -1) * size.unsqueeze(-1))


def blocks(shape: tuple[int, ...], head_dim: int | None = None) -> int:
    """Return the number of blocks of a parameter; rows are those of all dimensions but the last.

    Raises ValueError where heads of so many rows do not fit.
    """
    rows = 1 if len(shape) < 2 else torch.Size(shape[:-1]).numel()
    if head_dim and rows % head_dim:
        raise ValueError(f"{rows} rows are no heads of {head_dim}")
    return rows // head_dim if head_dim else rows

"""Fira (arXiv:2410.01623): GaLore, with what the projection leaves out added at the scale of what it keeps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gym_optim import config
from gym_optim.base import State
from gym_optim.optimizers.galore import GaLore, projected_direction

GROWTH = 1.01  #: most that the norm of the rest may grow in a step
TINY = 1e-8  #: added to norms that divide


class Fira(GaLore):
    """The full rank of the gradient in every update, with the state of GaLore; its options are GaLore's."""

    options = config.Fira

    def direction(self, gradient: Tensor, state: State, group: dict[str, Any]) -> Tensor:
        """Return the direction of GaLore, plus the rest of the gradient scaled column by column."""
        basis = state["basis"]  # [..., dim, rank]
        kept = basis.mT @ gradient  # [..., rank, other]
        adam = projected_direction(kept, state, group)
        rest = gradient - basis @ kept
        rest *= adam.norm(dim=-2, keepdim=True) / (kept.norm(dim=-2, keepdim=True) + TINY)  # [..., 1, other]
        return basis @ adam + limit_norm_growth(rest, state)


def limit_norm_growth(update: Tensor, state: State) -> Tensor:
    """Scale the update of each matrix down, in place, so that its norm grows by no more than `GROWTH` from step to step."""
    norm = update.norm(dim=(-2, -1), keepdim=True)  # [..., 1, 1]
    if "norm" in state:
        factor = (GROWTH * state["norm"] / (norm + torch.finfo(norm.dtype).tiny)).clamp_(max=1.0)
        # A norm of zero, as at the first step of a frozen start, says nothing about the next one.
        factor = torch.where(state["norm"] > 0, factor, torch.ones_like(factor))
        update, norm = update.mul_(factor), norm * factor
    state["norm"] = norm
    return update

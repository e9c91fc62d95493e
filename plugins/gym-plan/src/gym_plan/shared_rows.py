"""One of several processes that share rows, without the others: what it exchanges with them has no data anyway."""

from __future__ import annotations

import torch
from torch import Tensor

from gym_core import Recipe
from gym_torch.attention.context_parallel import ContextGroup
from gym_torch.distributed.context_parallel import check_model
from gym_torch.kinds import TorchStrategy, part
from gym_torch.model.loading import LoadedModel


class FirstOfGroup(ContextGroup):
    """The first of so many processes, none of which has fewer tokens or labels."""

    def __init__(self, size: int) -> None:
        """Take how many share a row."""
        super().__init__(0, size)

    def own(self, places: Tensor) -> Tensor:
        """Return as many numbers as one process has of them; which places those are, tensors without data do not say."""
        return torch.arange(-(-len(places) // self.size), device=places.device)

    def _exchange(self, parts: Tensor) -> Tensor:
        return torch.empty_like(parts)

    def _sum(self, part: Tensor) -> Tensor:
        return part.clone()


def sharing(recipe: Recipe, model: LoadedModel) -> int:
    """Return how many processes share the rows of a run. Raises RecipeError where they cannot."""
    strategy = part(recipe, TorchStrategy)
    size = 1 if strategy is None else strategy.shares_rows()
    check_model(model, size)
    return size

"""Model stock (arXiv:2403.19522, equation 4): the mean of the changes, shrunk by their angle."""

from __future__ import annotations

import torch
from torch import Tensor

from gym_deltasoup.config.dense import ModelStock
from gym_deltasoup.merging.distances import Distances
from gym_deltasoup.merging.rule import MergeRule, Plan, by_scope
from gym_deltasoup.merging.updates import Updates


class ModelStockRule(MergeRule):
    """The mean of the changes times a ratio for each scope."""

    def __init__(self, config: ModelStock) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Return the plan."""
        found = updates.distances(self.config.scope)
        return by_scope(updates, self.config.scope, [shares(each) for each in found])


def shares(distances: Distances) -> Tensor:
    """Return `t/n` for each of n inputs: `t = n c / (1 + (n - 1) c)`, `c` the mean cosine of two of them.

    Where a change is zero its cosines count as 0, so that the base is kept rather than left.
    """
    norms = distances.norms
    count = len(norms)
    lengths = norms[:, None] * norms[None, :]
    cosines = torch.where(lengths > 0, distances.products / lengths.clamp(min=1e-300), 0.0)
    mean = float((cosines.sum() - cosines.diagonal().sum()) / (count * (count - 1)))
    cosine = min(1.0, max(0.0, mean))
    ratio = count * cosine / (1 + (count - 1) * cosine)
    return torch.full((count,), ratio / count, dtype=torch.float64)

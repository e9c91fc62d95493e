"""TIES (arXiv:2306.01708, algorithm 1): trim, elect a sign, and average those who agree with it."""

from __future__ import annotations

import torch
from torch import Tensor

from gym_deltasoup.config.sparse import TIES
from gym_deltasoup.merging.magnitudes import magnitudes
from gym_deltasoup.merging.rule import MergeRule, Plan
from gym_deltasoup.merging.updates import Chunk, Updates


class TIESRule(MergeRule):
    """Trims each change over its scope, whole, whatever the chunks are."""

    def __init__(self, config: TIES) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Return the plan."""
        scope, density = self.config.scope, self.config.density
        # The least magnitude that stays has the rank `size - kept + 1`.
        least = magnitudes(updates, lambda size: size - max(1, int(density * size)) + 1, scope)
        of = {tensor: number for number, members in enumerate(updates.scopes(scope)) for tensor in members}

        def combine(chunk: Chunk) -> Tensor:
            kept = torch.where(chunk.values.abs() >= least[:, of[chunk.tensor], None], chunk.values, 0.0)
            return self.config.scale * elected(kept)

        return Plan(combine)


def elected(values: Tensor) -> Tensor:
    """Return the mean of those numbers of a coordinate whose sign is that of their sum: `[inputs, n]` to `[n]`.

    It is 0 where the sum is 0.
    """
    sign = values.sum(0, dtype=torch.float64).sign().to(values.dtype)
    agree = values * sign > 0
    total = torch.where(agree, values, 0.0).sum(0, dtype=torch.float64)
    return (total / agree.sum(0).clamp(min=1)).to(values.dtype)

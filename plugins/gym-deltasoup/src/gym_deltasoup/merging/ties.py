"""TIES (arXiv:2306.01708, algorithm 1): trim, elect a sign, and average those who agree with it."""

from __future__ import annotations

import torch
from torch import Tensor

from gym_deltasoup.config.sparse import TIES
from gym_deltasoup.merging.magnitudes import magnitudes
from gym_deltasoup.merging.rule import MergeRule, Plan
from gym_deltasoup.merging.updates import Chunk, Updates
from gym_deltasoup.merging.weighted_mean import shares_of


class TIESRule(MergeRule):
    """Trims each change over its scope, whole, whatever the chunks are."""

    def __init__(self, config: TIES) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Return the plan."""
        scope, default = self.config.scope, self.config.density
        weights = shares_of(updates) if self.config.normalize else updates.weights
        # The least magnitude that stays has the rank `size - kept + 1`.
        least = magnitudes(
            updates, lambda size, said: size - (said.nan_to_num(default) * size).long().clamp(min=1) + 1, scope
        )
        of = {tensor: number for number, members in enumerate(updates.scopes(scope)) for tensor in members}

        def combine(chunk: Chunk) -> Tensor:
            kept = torch.where(chunk.values.abs() >= least[:, of[chunk.tensor], None], chunk.values, 0.0)
            return self.config.scale * elected(kept, weights[:, chunk.tensor], self.config.normalize)

        return Plan(combine)


def elected(values: Tensor, weights: Tensor, normalize: bool) -> Tensor:
    """Return the mean, or the sum, of those numbers of a coordinate whose sign is that of the sum: `[inputs, n]` to `[n]`.

    Sums have weights `[inputs]`. It is 0 where the sum is 0.
    """
    pushed = values * weights[:, None]
    agree = pushed * pushed.sum(0).sign() > 0
    total = torch.where(agree, pushed, 0.0).sum(0)
    if normalize:
        total /= torch.where(agree, weights[:, None], 0.0).sum(0).clamp(min=torch.finfo(torch.float64).tiny)
    return total.to(values.dtype)

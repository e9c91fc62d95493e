"""Model breadcrumbs (arXiv:2312.06795, section 3): each change without its largest and its smallest numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from gym_deltasoup.config.sparse import Breadcrumbs
from gym_deltasoup.merging.magnitudes import magnitudes
from gym_deltasoup.merging.rule import MergeRule, Plan, after_change
from gym_deltasoup.merging.updates import Chunk, Updates


class BreadcrumbsRule(MergeRule):
    """Cuts both ends of the magnitudes."""

    def __init__(self, config: Breadcrumbs) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Return the plan."""
        config = self.config
        least = magnitudes(updates, lambda size, said: self._below(size, said) + 1, config.scope)
        most = magnitudes(updates, lambda size, said: size - self._above(size, said), config.scope)
        of = {tensor: number for number, members in enumerate(updates.scopes(config.scope)) for tensor in members}

        def cut(chunk: Chunk) -> Tensor:
            scope, size = of[chunk.tensor], chunk.values.abs()
            kept = (size >= least[:, scope, None]) & (size <= most[:, scope, None])
            return torch.where(kept, chunk.values, 0.0)

        return after_change(config.rule, updates, cut, hostile)

    def _above(self, size: int, densities: Tensor) -> Tensor:
        """Return how many large numbers of each input are dropped: `[inputs]`. Where a density leaves fewer to drop, no more."""
        said = torch.full((len(densities),), int(self.config.top * size))
        return torch.where(densities.isnan(), said, said.minimum(size - _kept(size, densities)))

    def _below(self, size: int, densities: Tensor) -> Tensor:
        """Return how many small numbers of each input are dropped: `[inputs]`."""
        rest = size - _kept(size, densities) - self._above(size, densities)
        return torch.where(densities.isnan(), int(self.config.bottom * size), rest)


def _kept(size: int, densities: Tensor) -> Tensor:
    return (densities.nan_to_num(0.0) * size).long()

"""Model breadcrumbs (arXiv:2312.06795, section 3): each change without its largest and its smallest numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from gym_core import GymError
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
        least = magnitudes(updates, lambda size, said: self._below(updates, size, said) + 1, config.scope)
        most = magnitudes(updates, lambda size, said: size - self._above(updates, size), config.scope)
        of = {tensor: number for number, members in enumerate(updates.scopes(config.scope)) for tensor in members}

        def cut(chunk: Chunk) -> Tensor:
            scope, size = of[chunk.tensor], chunk.values.abs()
            kept = (size >= least[:, scope, None]) & (size <= most[:, scope, None])
            return torch.where(kept, chunk.values, 0.0)

        return after_change(config.rule, updates, cut, hostile)

    def _above(self, updates: Updates, size: int) -> Tensor:
        return torch.full((len(updates.ids),), int(self.config.top * size))

    def _below(self, updates: Updates, size: int, densities: Tensor) -> Tensor:
        """Return how many small numbers of each input are dropped: `[inputs]`. Raises GymError where a density leaves none."""
        top = self.config.top
        for name, density in zip(updates.ids, densities.tolist(), strict=True):
            if density > 1 - top + 1e-9:
                why = f"{name} shall keep {density:g} of its numbers, and the largest {top:g} are dropped"
                raise GymError(why, key="inputs.density", fix=f"give at most {1 - top:g}, or a smaller `top`")
        said = size - (densities.nan_to_num(0.0) * size).long() - self._above(updates, size)
        return torch.where(densities.isnan(), int(self.config.bottom * size), said)

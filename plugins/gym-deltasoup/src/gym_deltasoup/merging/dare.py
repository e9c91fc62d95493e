"""DARE (arXiv:2311.03099, section 3.2): drop numbers of each change at random, and rescale the others."""

from __future__ import annotations

import torch
from torch import Tensor

from gym_deltasoup.config.sparse import DARE
from gym_deltasoup.merging.drawn import uniforms
from gym_deltasoup.merging.rule import MergeRule, Plan, after_change
from gym_deltasoup.merging.updates import Chunk, Updates


class DARERule(MergeRule):
    """Drops with one probability for all: each change keeps its mean."""

    def __init__(self, config: DARE) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Return the plan."""
        of = updates.drop_rates(self.config.drop_rate)

        def dropped(chunk: Chunk) -> Tensor:
            rates = of[:, chunk.tensor, None]
            draws = uniforms(self.config.seed, updates.ids, chunk.begin, chunk.begin + chunk.values.shape[1])
            kept = chunk.values / (1 - rates) if self.config.rescale else chunk.values
            return torch.where(draws >= rates, kept, 0.0).to(chunk.values.dtype)

        return after_change(self.config.rule, updates, dropped, hostile)

"""DARE (arXiv:2311.03099, section 3.2): drop numbers of each change at random, and rescale the others."""

from __future__ import annotations

from torch import Tensor

from gym_deltasoup.config.sparse import DARE
from gym_deltasoup.merging.drawn import thinned
from gym_deltasoup.merging.rule import MergeRule, Plan, after_change
from gym_deltasoup.merging.updates import Chunk, Updates


class DARERule(MergeRule):
    """Drops with one probability for all: each change keeps its mean."""

    def __init__(self, config: DARE) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Return the plan."""
        config, of = self.config, updates.drop_rates(self.config.drop_rate)

        def dropped(chunk: Chunk) -> Tensor:
            return thinned(chunk, updates.ids, of[:, chunk.tensor, None], config.seed, config.rescale)

        return after_change(config.rule, updates, dropped, hostile)

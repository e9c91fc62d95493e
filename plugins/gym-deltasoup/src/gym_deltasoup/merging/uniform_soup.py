"""The uniform soup (arXiv:2203.05482): `(1/n) sum_i x_i`."""

from __future__ import annotations

import torch

from gym_deltasoup.config.dense import UniformSoup
from gym_deltasoup.merging.rule import MergeRule, Plan, weighted
from gym_deltasoup.merging.updates import Updates


class UniformSoupRule(MergeRule):
    """The mean."""

    def __init__(self, config: UniformSoup) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Return the plan to take the mean."""
        count = len(updates.ids)
        return weighted(torch.full((count,), 1 / count, dtype=torch.float64))

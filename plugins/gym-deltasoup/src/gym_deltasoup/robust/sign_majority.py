"""Majority vote of signs (arXiv:1810.05291), for changes of one bit a number: a sign and a scale."""

from __future__ import annotations

import torch
from torch import Tensor

from gym_deltasoup.config.robust import SignMajority
from gym_deltasoup.merging.rule import MergeRule, Plan
from gym_deltasoup.merging.updates import Chunk, Updates


class SignMajorityRule(MergeRule):
    """The sign that most have, with the median of the scales of a tensor."""

    def __init__(self, config: SignMajority) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Return the plan."""
        sums = torch.zeros(len(updates.spans), len(updates.ids), dtype=torch.float64)
        for chunk in updates.chunks():
            sums[chunk.tensor] += chunk.values.abs().sum(1, dtype=torch.float64)
        sizes = torch.tensor([max(1, span.end - span.begin) for span in updates.spans])
        scales = (sums / sizes[:, None]).quantile(0.5, dim=1)

        def combine(chunk: Chunk) -> Tensor:
            return (scales[chunk.tensor] * chunk.values.sign().sum(0).sign()).to(chunk.values.dtype)

        return Plan(combine)

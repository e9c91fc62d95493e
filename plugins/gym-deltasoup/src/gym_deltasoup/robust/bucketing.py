"""Bucketing (arXiv:2006.09365, algorithm 1): means of inputs that are put together at random."""

from __future__ import annotations

import torch
from torch import Tensor

from gym_deltasoup.config.mixing import Bucketing
from gym_deltasoup.merging.drawn import uniform
from gym_deltasoup.merging.rule import MergeRule, Plan, after_mixing
from gym_deltasoup.merging.updates import Updates


class BucketingRule(MergeRule):
    """A rule behind means of random buckets."""

    def __init__(self, config: Bucketing) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Return the plan."""
        matrix = buckets(updates.ids, self.config.size, self.config.seed)
        return after_mixing(self.config.rule, updates, matrix, hostile, {"buckets": len(matrix)})


def buckets(ids: tuple[str, ...], size: int, seed: int) -> Tensor:
    """Return the matrix `[buckets, inputs]`; who shares a bucket follows from the seed and the names, not from their order."""
    drawn = {name: float(uniform(seed, name, 0, 1)) for name in ids}
    order = sorted(range(len(ids)), key=lambda number: (drawn[ids[number]], ids[number]))
    groups = [order[begin : begin + size] for begin in range(0, len(order), size)]
    matrix = torch.zeros(len(groups), len(ids), dtype=torch.float64)
    for row, group in enumerate(groups):
        matrix[row, group] = 1 / len(group)
    return matrix

"""Nearest-neighbour mixing (arXiv:2302.01772, algorithm 2)."""

from __future__ import annotations

import torch
from torch import Tensor

from gym_deltasoup.config.mixing import NNM
from gym_deltasoup.merging.rule import MergeRule, Plan, after_mixing
from gym_deltasoup.merging.updates import Updates


class NNMRule(MergeRule):
    """A rule behind means of near inputs."""

    def __init__(self, config: NNM) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Return the plan."""
        matrix = neighbours(updates.distances()[0].between, hostile)
        return after_mixing(self.config.rule, updates, matrix, hostile, {})


def neighbours(squared: Tensor, hostile: int) -> Tensor:
    """Return the matrix `[inputs, inputs]` that makes of each input the mean of the `n - f` nearest to it, itself the first."""
    count = len(squared)
    near = squared.clone().fill_diagonal_(-1.0).argsort(dim=1, stable=True)[:, : count - hostile]
    return torch.zeros(count, count, dtype=torch.float64).scatter_(1, near, 1 / (count - hostile))

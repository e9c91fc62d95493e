"""Krum (arXiv:1703.02757, section 4): the input with the least sum of squared distances to its nearest others."""

from __future__ import annotations

import torch
from torch import Tensor

from gym_deltasoup.config.robust import Krum
from gym_deltasoup.merging.rule import MergeRule, Plan, weighted
from gym_deltasoup.merging.updates import Updates


class KrumRule(MergeRule):
    """One input, chosen."""

    def __init__(self, config: Krum) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Return the plan."""
        best = ranked(updates.distances()[0].between, hostile)[0]
        weights = torch.zeros(len(updates.ids), dtype=torch.float64)
        weights[best] = 1
        return weighted(weights, {"selected": [updates.ids[best]]})


def scores(squared: Tensor, neighbours: int) -> Tensor:
    """Return the sum of the least `neighbours` squared distances of each input to others: `[inputs, inputs]` to `[inputs]`."""
    others = squared.clone().fill_diagonal_(torch.inf)
    return others.sort(1).values[:, : max(1, neighbours)].sum(1) if len(others) > 1 else others.new_zeros(1)


def ranked(squared: Tensor, hostile: int) -> list[int]:
    """Return the inputs from the best score to the worst, with `n - f - 2` neighbours; the first of equals comes first."""
    found: list[int] = scores(squared, len(squared) - hostile - 2).argsort(stable=True).tolist()
    return found

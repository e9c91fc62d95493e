"""The geometric median by the smoothed Weiszfeld algorithm (arXiv:1912.13445, algorithm 2), on distances alone."""

from __future__ import annotations

import torch
from torch import Tensor

from gym_deltasoup.config.robust import GeometricMedian
from gym_deltasoup.merging.distances import Distances
from gym_deltasoup.merging.rule import MergeRule, Plan, weighted
from gym_deltasoup.merging.updates import Updates

STILL = 1e-13  #: largest change of a weight at which nothing moves any more


class GeometricMedianRule(MergeRule):
    """A mean whose weights are found by iteration: it is in the hull of the inputs."""

    def __init__(self, config: GeometricMedian) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Return the plan."""
        weights = weiszfeld(updates.distances()[0], self.config.nu, self.config.max_iterations)
        return weighted(weights, {"weights": dict(zip(updates.ids, weights.tolist(), strict=True))})


def weiszfeld(distances: Distances, nu: float, max_iterations: int) -> Tensor:
    """Return the weights `[inputs]` of the geometric median: `w_i` in proportion to `1 / max(nu, |x_i - z|)`.

    `nu` is a share of the median distance between two inputs.
    """
    count = len(distances.between)
    weights = torch.full((count,), 1 / count, dtype=torch.float64)
    if count == 1:
        return weights
    pairs = distances.between[*torch.triu_indices(count, count, 1)].sqrt()
    floor = nu * float(pairs.median()) or nu * float(pairs.mean())
    if floor == 0:  # all are equal
        return weights
    for _ in range(max_iterations):
        found = 1 / distances.to(weights).clamp(min=floor)
        found /= found.sum()
        still = float((found - weights).abs().max()) < STILL
        weights = found
        if still:
            break
    return weights

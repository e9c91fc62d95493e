"""The geometric median by the smoothed Weiszfeld algorithm (arXiv:1912.13445, algorithm 2), on distances alone."""

from __future__ import annotations

import torch
from torch import Tensor

from gym_deltasoup.config.robust import GeometricMedian
from gym_deltasoup.merging.distances import Distances
from gym_deltasoup.merging.rule import MergeRule, Plan, weighted
from gym_deltasoup.merging.updates import Updates

STILL = 1e-12  #: largest change of a weight, as a share of it, at which nothing moves any more


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

    `nu` is a share of the `radius`.
    """
    if len(distances.between) == 1:
        return torch.ones(1, dtype=torch.float64)
    around = radius(distances)
    floor = nu * float(around.min())
    if floor == 0:  # half of the inputs are one point: it is a median, and no step would reach it
        same = (around == 0).double()
        return same / same.sum()
    weights = 1 / around  # near to it from the first step on, however far the hostile inputs are
    weights /= weights.sum()
    for _ in range(max_iterations):
        found = 1 / distances.to(weights).clamp(min=floor)
        found /= found.sum()
        still = bool(((found - weights).abs() <= STILL * found).all())  # a far input is far by a small weight too
        weights = found
        if still:
            break
    return weights


def radius(distances: Distances) -> Tensor:
    """Return of each input the distance within which half of all inputs are, itself among them: `[inputs]`.

    Where fewer than half are hostile, that of an honest one is a distance of honest ones at most, wherever the hostile ones are.
    A median over pairs would not be: three of ten inputs are in more than half of the pairs.
    """
    count = len(distances.between)
    nearest = distances.between.clone().fill_diagonal_(0).sort(1).values
    return nearest[:, max(1, (count - 1) // 2)].sqrt()

"""Centered clipping (arXiv:2012.10333, equation 7): steps from a centre, each input cut to a radius around it."""

from __future__ import annotations

import torch
from torch import Tensor

from gym_deltasoup.config.robust import CenteredClipping, GeometricMedian
from gym_deltasoup.merging.distances import Distances
from gym_deltasoup.merging.rule import MergeRule, Plan, weighted
from gym_deltasoup.merging.updates import Updates
from gym_deltasoup.robust.geometric_median import weiszfeld


class CenteredClippingRule(MergeRule):
    """The centre after some steps."""

    def __init__(self, config: CenteredClipping) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Return the plan."""
        distances = updates.distances()[0]
        if self.config.start == "base":
            first = torch.zeros(len(updates.ids), dtype=torch.float64)
        else:
            options = GeometricMedian()
            first = weiszfeld(distances, options.nu, options.max_iterations)
        return weighted(clipped(distances, first, self.config.tau, self.config.iterations))


def clipped(distances: Distances, weights: Tensor, tau: float | None, iterations: int) -> Tensor:
    """Return the weights `[inputs]` of the centre after some steps from one; zero has what they lack of 1.

    `v + mean_i s_i (x_i - v)` with `s_i = min(1, tau / |x_i - v|)`; by default `tau` is the median of those distances.
    """
    for _ in range(iterations):
        apart = distances.to(weights)
        radius = float(apart.median()) if tau is None else tau
        shrunk = torch.where(apart > radius, radius / apart.clamp(min=1e-300), 1.0)
        weights = weights * (1 - shrunk.mean()) + shrunk / len(shrunk)
    return weights

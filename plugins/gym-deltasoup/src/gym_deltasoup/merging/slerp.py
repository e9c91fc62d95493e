"""Spherical linear interpolation (Shoemake 1985) of two inputs."""

from __future__ import annotations

from math import acos, sin

import torch
from torch import Tensor

from gym_deltasoup.config.by_layer import values_of
from gym_deltasoup.config.dense import SLERP
from gym_deltasoup.merging.distances import Distances
from gym_deltasoup.merging.rule import MergeRule, Plan, by_tensor
from gym_deltasoup.merging.updates import Updates
from gym_deltasoup.merging.weighted_mean import shares_of

FLAT = 1e-4  #: sine of an angle below which the arc is the line, to more digits than fp32 has


class SLERPRule(MergeRule):
    """A point on the arc between two inputs."""

    def __init__(self, config: SLERP) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Return the plan."""
        tensors = [span.name for span in updates.spans]
        scopes = zip(updates.scopes(self.config.scope), updates.distances(self.config.scope), strict=True)
        of = {tensor: found for members, found in scopes for tensor in members}
        t = self.config.t
        far = enumerate(shares_of(updates)[1].tolist() if t is None else values_of(t, tensors, "merger.t"))
        return by_tensor([arc(of[tensor], t) for tensor, t in far])


def arc(distances: Distances, t: float) -> Tensor:
    """Return the weights `sin((1-t)a)/sin(a)` and `sin(t a)/sin(a)` of two inputs with the angle `a` between them."""
    length = float(distances.norms.prod())
    cosine = float(distances.products[0, 1]) / length if length > 0 else 1.0
    angle = acos(min(1.0, max(-1.0, cosine)))
    if sin(angle) < FLAT:
        return torch.tensor([1 - t, t], dtype=torch.float64)
    return torch.tensor([sin((1 - t) * angle), sin(t * angle)], dtype=torch.float64) / sin(angle)

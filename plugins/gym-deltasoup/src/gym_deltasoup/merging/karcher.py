"""The mean of directions on the sphere (Karcher 1977), as long as inputs are in the mean."""

from __future__ import annotations

import torch
from torch import Tensor

from gym_deltasoup.config.dense import Karcher
from gym_deltasoup.merging.distances import Distances
from gym_deltasoup.merging.rule import MergeRule, Plan, by_tensor
from gym_deltasoup.merging.updates import Updates
from gym_deltasoup.merging.weighted_mean import shares_of

FLAT = 1e-9  #: sine of an angle, or length of a mean of directions, below which it counts as 0


class KarcherRule(MergeRule):
    """Every step stays in what the inputs span, so their inner products say all there is to know."""

    def __init__(self, config: Karcher) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Return the plan. Raises GymError for negative weights, or where all are 0."""
        shares, scope = shares_of(updates), self.config.scope
        scopes = zip(updates.scopes(scope), updates.distances(scope), strict=True)
        of = {tensor: found for members, found in scopes for tensor in members}
        return by_tensor([self._weights(of[tensor], shares[:, tensor]) for tensor in range(len(updates.spans))])

    def _weights(self, distances: Distances, shares: Tensor) -> Tensor:
        """Return the weight of each input in the mean, fp64 `[inputs]`; where directions cancel out, those of the plain mean."""
        norms = distances.norms
        lengths = norms[:, None] * norms
        cosines = torch.where(lengths > 0, distances.products / lengths.clamp(min=1e-300), 0.0)
        mean = torch.where(norms > 0, shares, 0.0)  # in units of the directions; zero has none
        if (length := _length(mean, cosines)) < FLAT:
            return shares
        mean = mean / length
        for _ in range(self.config.max_iter):
            near = (cosines @ mean).clamp(-1, 1)
            angles = near.acos()
            pull = torch.where(norms > 0, shares, 0.0) * torch.where(
                angles.sin() > FLAT, angles / angles.sin().clamp(min=FLAT), 1.0
            )
            step = pull - (pull @ near) * mean
            if (size := _length(step, cosines)) < self.config.tol:
                break
            mean = size.cos() * mean + size.sin() / size * step
            mean = mean / _length(mean, cosines)
        return torch.where(norms > 0, mean * (shares @ norms) / norms.clamp(min=1e-300), 0.0)


def _length(weights: Tensor, products: Tensor) -> Tensor:
    return (weights @ products @ weights).clamp(min=0).sqrt()

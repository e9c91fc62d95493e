"""The weighted mean: `sum_i w_i x_i / sum_i w_i`."""

from __future__ import annotations

import torch
from torch import Tensor

from gym_core import GymError
from gym_deltasoup.config.dense import WeightedMean
from gym_deltasoup.merging.rule import MergeRule, Plan, by_tensor
from gym_deltasoup.merging.updates import Updates


class WeightedMeanRule(MergeRule):
    """The mean with the weights of the inputs."""

    def __init__(self, config: WeightedMean) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Return the plan. Raises GymError for negative weights of a mean, or where all are 0."""
        shares = shares_of(updates) if self.config.normalize else updates.weights
        alike = not shares.numel() or torch.equal(shares, shares[:, :1].expand_as(shares))
        told = (
            {"weights": dict(zip(updates.ids, shares[:, 0].tolist(), strict=True))} if shares.numel() and alike else {}
        )
        return by_tensor(shares.unbind(1), told)


def shares_of(updates: Updates) -> Tensor:
    """Return the weights of the inputs in a mean: fp64 `[inputs, tensors]`, of sum 1.

    Raises GymError for negative ones, or only zeros.
    """
    largest = updates.weights.amax(0)
    if not (updates.weights >= 0).all() or not (largest > 0).all():
        why = "weights of a mean are not negative, and not all 0"
        raise GymError(why, key="inputs.weight", fix="give numbers such as how many rows each was trained on")
    ratios = updates.weights / largest  # of which the sum is a number, whatever the weights are
    return ratios / ratios.sum(0)

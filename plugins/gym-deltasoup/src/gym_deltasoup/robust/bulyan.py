"""Bulyan (arXiv:1802.07927, section 4): inputs that Krum picks one by one, then values near the median."""

from __future__ import annotations

import torch
from torch import Tensor

from gym_deltasoup.config.robust import Bulyan
from gym_deltasoup.merging.rule import MergeRule, Plan
from gym_deltasoup.merging.sorted_coordinates import middle_of, sorted_columns
from gym_deltasoup.merging.updates import Chunk, Updates
from gym_deltasoup.robust.krum import scores


class BulyanRule(MergeRule):
    """Two steps: `n - 2f` inputs, then `n - 4f` values of each coordinate."""

    def __init__(self, config: Bulyan) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Return the plan."""
        count = len(updates.ids)
        chosen = picked(updates.distances()[0].between, hostile)
        near = count - 4 * hostile

        def combine(chunk: Chunk) -> Tensor:
            return nearest_to_median(chunk.values[chosen], near)

        return Plan(combine, told={"selected": [updates.ids[number] for number in chosen]})


def picked(squared: Tensor, hostile: int) -> list[int]:
    """Return `n - 2f` inputs: each time the one with the best score of Krum among those that are left."""
    left, chosen = list(range(len(squared))), []
    for _ in range(len(squared) - 2 * hostile):
        best = int(scores(squared[left][:, left], len(left) - hostile - 2).argmin())
        chosen.append(left.pop(best))
    return sorted(chosen)


def nearest_to_median(values: Tensor, near: int) -> Tensor:
    """Return the mean of the `near` values of each coordinate that are nearest to its median: `[inputs, n]` to `[n]`."""
    ordered = sorted_columns(values)
    apart = (ordered - middle_of(ordered)).abs()
    kept = apart.argsort(dim=0, stable=True)[:near]
    return ordered.gather(0, kept).mean(0, dtype=torch.float64).to(values.dtype)

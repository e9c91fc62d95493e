"""Adaptive robust clipping (arXiv:2405.14432, algorithm 2)."""

from __future__ import annotations

import torch
from torch import Tensor

from gym_deltasoup.config.mixing import ARC
from gym_deltasoup.merging.rule import MergeRule, Plan, after_mixing
from gym_deltasoup.merging.updates import Updates
from gym_deltasoup.robust.norm_bound import cut


class ARCRule(MergeRule):
    """A rule behind changes of which the longest are cut."""

    def __init__(self, config: ARC) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Return the plan."""
        norms = updates.distances()[0].norms
        bound = clipping_bound(norms, hostile)
        return after_mixing(self.config.rule, updates, torch.diag(cut(norms, bound)), hostile, {"bound": bound})


def clipping_bound(norms: Tensor, hostile: int) -> float:
    """Return the norm behind the `floor(2 (f/n) (n - f))` largest."""
    count = len(norms)
    longest = 2 * hostile * (count - hostile) // count
    return float(norms.sort(descending=True).values[min(longest, count - 1)])

"""Norm bounding (arXiv:1911.07963, section 4): changes are cut to a norm and averaged."""

from __future__ import annotations

import torch
from torch import Tensor

from gym_deltasoup.config.robust import NormBound
from gym_deltasoup.merging.rule import MergeRule, Plan, weighted
from gym_deltasoup.merging.updates import Updates


class NormBoundRule(MergeRule):
    """The mean of changes that are cut."""

    def __init__(self, config: NormBound) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Return the plan."""
        norms = updates.distances()[0].norms
        bound = float(norms.median()) if self.config.bound is None else self.config.bound
        return weighted(cut(norms, bound) / len(norms), {"bound": bound})


def cut(norms: Tensor, bound: float) -> Tensor:
    """Return what each change is multiplied by, so that no norm is above the bound."""
    return torch.where(norms > bound, bound / norms.clamp(min=1e-300), 1.0)

"""FLTrust (arXiv:2012.13995, equations 2 to 4): trust by the angle to an update that is known to be honest."""

from __future__ import annotations

import torch

from gym_deltasoup.config.robust import FLTrust
from gym_deltasoup.merging.rule import MergeRule, Plan, weighted
from gym_deltasoup.merging.updates import Updates


class FLTrustRule(MergeRule):
    """The mean by trust, each input at the norm of the trusted one."""

    def __init__(self, config: FLTrust) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Return the plan."""
        trusted = updates.trusted
        assert trusted is not None, "a merger that needs a trusted input is given one"
        distances = updates.distances()[0]
        norms = distances.norms
        lengths = norms * norms[trusted]
        cosines = torch.where(lengths > 0, distances.products[trusted] / lengths.clamp(min=1e-300), 0.0)
        trust = cosines.clamp(0, 1)
        trust[trusted] = 0
        total = float(trust.sum())
        shares = trust / total if total > 0 else trust
        weights = torch.where(norms > 0, shares * norms[trusted] / norms.clamp(min=1e-300), 0.0)
        return weighted(weights, {"trust": dict(zip(updates.ids, trust.tolist(), strict=True))})

"""The default: norms are cut, copies counted once, then NNM (arXiv:2302.01772), then the trimmed mean."""

from __future__ import annotations

from gym_deltasoup.config.mixing import ByzantineRobust
from gym_deltasoup.config.robust import TrimmedMean
from gym_deltasoup.merging.rule import MergeRule, Plan, after_mixing, weighted
from gym_deltasoup.merging.updates import Updates
from gym_deltasoup.robust.copies import families, means
from gym_deltasoup.robust.nnm import neighbours
from gym_deltasoup.robust.norm_bound import cut


class ByzantineRobustRule(MergeRule):
    """One matrix cuts and mixes, so that each chunk is multiplied once."""

    def __init__(self, config: ByzantineRobust) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Return the plan."""
        distances = updates.distances()[0]
        norms = distances.norms
        bound = self.config.norm_cap * float(norms.quantile(0.5))
        cuts = cut(norms, bound)
        told = {
            "bound": bound,
            "cut": [name for name, each in zip(updates.ids, cuts.tolist(), strict=True) if each < 1],
        }
        if hostile == 0:  # everybody is a neighbour of everybody
            return weighted(cuts / len(cuts), told)
        shown, named = distances.scaled(cuts), None
        found = families(shown.between, self.config.copy_radius)
        copies = [[updates.ids[number] for number in group] for group in found if len(group) > 1]
        if copies and len(found) > 2 * hostile:
            named = means(found, len(cuts))
            shown, told = shown.mixed(named), {**told, "copies": copies}
        mixing = neighbours(shown.between, hostile)
        matrix = (mixing if named is None else mixing @ named) * cuts
        return after_mixing(TrimmedMean(), updates, matrix, hostile, told)

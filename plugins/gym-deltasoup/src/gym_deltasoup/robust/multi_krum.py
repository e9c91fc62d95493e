"""Multi-Krum (arXiv:1703.02757, section 4): the mean of the inputs with the best scores of Krum."""

from __future__ import annotations

from gym_core import GymError
from gym_deltasoup.config.robust import MultiKrum
from gym_deltasoup.merging.greedy_soup import mean_of
from gym_deltasoup.merging.rule import MergeRule, Plan, weighted
from gym_deltasoup.merging.updates import Updates
from gym_deltasoup.robust.krum import ranked


class MultiKrumRule(MergeRule):
    """The mean of several inputs, chosen."""

    def __init__(self, config: MultiKrum) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Return the plan. Raises GymError where more are to be selected than can be honest."""
        count = len(updates.ids)
        wanted = self.config.selected or count - hostile
        if wanted > count - hostile:
            why = f"multi_krum can select {count - hostile} of {count} inputs with {hostile} hostile ones, not {wanted}"
            raise GymError(why, key="merger.selected", fix=f"give at most {count - hostile}")
        best = ranked(updates.distances()[0].between, hostile)[:wanted]
        return weighted(mean_of(best, count), {"selected": [updates.ids[number] for number in best]})

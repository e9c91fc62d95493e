"""The mean around the median (arXiv:1802.10116, definition 7)."""

from __future__ import annotations

from gym_deltasoup.config.robust import MeaMed
from gym_deltasoup.merging.rule import MergeRule, Plan
from gym_deltasoup.merging.updates import Updates
from gym_deltasoup.robust.bulyan import nearest_to_median


class MeaMedRule(MergeRule):
    """The values that are nearest to the middle one."""

    def __init__(self, config: MeaMed) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Return the plan."""
        near = len(updates.ids) - hostile
        return Plan(lambda chunk: nearest_to_median(chunk.values, near))

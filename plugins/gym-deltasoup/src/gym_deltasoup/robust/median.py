"""The coordinate-wise median (arXiv:1803.01498, definition 1)."""

from __future__ import annotations

from gym_deltasoup.config.robust import Median
from gym_deltasoup.merging.rule import MergeRule, Plan
from gym_deltasoup.merging.sorted_coordinates import middle_of, sorted_columns
from gym_deltasoup.merging.updates import Updates


class MedianRule(MergeRule):
    """The middle value."""

    def __init__(self, config: Median) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Return the plan."""
        return Plan(lambda chunk: middle_of(sorted_columns(chunk.values)))

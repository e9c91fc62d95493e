"""The coordinate-wise trimmed mean (arXiv:1803.01498, definition 2)."""

from __future__ import annotations

from gym_deltasoup.config.robust import TrimmedMean
from gym_deltasoup.merging.rule import MergeRule, Plan
from gym_deltasoup.merging.sorted_coordinates import sorted_columns, trimmed
from gym_deltasoup.merging.updates import Updates


class TrimmedMeanRule(MergeRule):
    """Without the f largest and the f smallest values."""

    def __init__(self, config: TrimmedMean) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Return the plan."""
        return Plan(lambda chunk: trimmed(sorted_columns(chunk.values), hostile))

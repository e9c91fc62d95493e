"""Task arithmetic (arXiv:2212.04089, section 2): `scale * sum_i w_i x_i`, `x_i` what an input changed in the base."""

from __future__ import annotations

from gym_deltasoup.config.dense import TaskArithmetic
from gym_deltasoup.merging.rule import MergeRule, Plan, by_tensor
from gym_deltasoup.merging.updates import Updates


class TaskArithmeticRule(MergeRule):
    """A step along the sum."""

    def __init__(self, config: TaskArithmetic) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Return the plan."""
        return by_tensor((self.config.scale * updates.weights).unbind(1))

"""gym-plan: what a run needs before it is started, and what `auto` becomes. Nothing heavy is imported here."""

from __future__ import annotations

from typing import ClassVar

from gym_torch.planners import Planner

__version__ = "0.1.0"


class MemoryPlanner(Planner):
    """The largest batch, or the least recomputation, with which a step fits the memory of this machine.

    A step is done on tensors without data, below autograd, operation by operation: what it would allocate is the prediction.
    """

    target: ClassVar[str] = "gym_plan.auto:Fitting"


__all__ = ["MemoryPlanner"]

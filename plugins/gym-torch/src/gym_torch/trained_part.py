"""The common base of everything that trains: the adapted model, and auxiliary modules.

All methods do nothing by default; the loop calls them on every part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from torch import Tensor

from gym_torch.batch import Batch


class FirstStepBatch(NamedTuple):
    """A batch of the first step, and what computes its loss, as the loop will: not divided by anything."""

    batch: Batch
    loss: Callable[[], Tensor]


class TrainedPart:
    """Base of what trains. A subclass overrides what it needs; the defaults do nothing."""

    def initialize(self, first_step: Iterable[FirstStepBatch] = ()) -> None:
        """Find first values from the weights or from the batches of the first step. Default: it has them already.

        Called once, before the first step of a fresh run; never for a resumed run, a plan or an export, where `load` restores.
        `first_step` is the same in every process. Taking a batch from it may run the model. Raises GymError where no first
        values can be found.
        """

    def penalty(self) -> Tensor | float:
        """Return a scalar that is added to the loss of a step, once a step. Default: nothing."""
        return 0.0

    def after_step(self, step: int, total: int) -> None:
        """Be told that step `step` of `total`, from 1, updated the weights. Their gradients are still there. Default: nothing.

        Options of an adapter that looks at gradients or at `total` declare so: `gym_torch.kinds.Adapter.needs_gradients`,
        `needs_total_steps`.
        """

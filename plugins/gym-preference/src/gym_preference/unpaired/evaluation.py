"""Evaluation on held-out responses."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gym_core import Train
from gym_data.examples import UnpairedExample
from gym_preference.unpaired.reference_point import ReferencePoint
from gym_preference.unpaired.reference_point_per_step import Measure
from gym_preference.unpaired.samples_with_reference_point import with_reference_point
from gym_torch.loop.evaluation import HeldOutLoss
from gym_torch.loop.job import Job
from gym_torch.packing import Layout
from gym_torch.source import Examples, once


class UnpairedEvaluation:
    """Measures what the objective measures in training, on all responses that are held out."""

    def __init__(
        self,
        examples: Examples[UnpairedExample],
        train: Train,
        layout: Layout,
        reference_point: ReferencePoint,
        measure: Measure,
    ) -> None:
        """Take the responses, what they are measured from, and what asks the policy for that."""
        self.examples, self.train, self.layout, self.reference_point, self.measure = (
            examples,
            train,
            layout,
            reference_point,
            measure,
        )

    def __call__(self, job: Job) -> Mapping[str, float] | None:
        """Return `loss` and the other metrics; None where a signal came."""
        every = np.arange(len(self.examples))
        found = self.reference_point.of(job.progress.step, *self.measure(self.reference_point.measured, every))
        whole = [self.examples[int(index)] for index in every]
        step = with_reference_point(
            once(self.examples, self.train, self.layout, job.spread.rank, job.spread.world), whole, found
        )
        metrics = HeldOutLoss(step)(job)
        return metrics and {**metrics, self.reference_point.name: found}

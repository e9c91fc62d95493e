"""Steps over judged answers, each with what its log-ratios are measured from, in training and in evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from torch import Tensor

from gym_core import Train
from gym_data.examples import UnpairedExample
from gym_preference.unpaired.mismatched_responses import with_baseline
from gym_preference.unpaired.reference_point import Baseline
from gym_torch.loop.evaluation import HeldOutLoss
from gym_torch.loop.job import Job
from gym_torch.packing import Ints, Layout
from gym_torch.source import Dataset, Examples, Source, Step, once

Measure = Callable[[Examples | None, Ints], tuple[float, float]]
"""Returns the sum of the log-ratios of the chosen ones of some answers under the policy as it is, and how many they are."""


class UnpairedSource(Source):
    """The steps of a dataset."""

    def __init__(self, order: Dataset, baseline: Baseline, measure: Measure) -> None:
        """Take the steps of the run, what they are measured from, and what asks the policy for that."""
        self.order, self.baseline, self.measure = order, baseline, measure
        self.total, self.tokens = order.total, order.tokens

    def steps(self, start: int, rank: int = 0, world: int = 1) -> Iterator[Step]:
        """Yield the steps from number `start` on; as each begins, the policy is measured."""
        order, baseline = self.order, self.baseline
        for number, step in enumerate(order.steps(start, rank, world), start):
            chosen = order.samples(*map(int, order.bounds[number : number + 2]))
            found = baseline.of(number, *self.measure(baseline.measured, chosen))
            whole = cast(Sequence[UnpairedExample], [order.examples[int(index)] for index in chosen])
            yield replace(with_baseline(step, whole, found), metrics={baseline.name: found})

    def extend(self, state: Mapping[str, Any], step: int) -> None:
        """Plan on from where a shorter plan ended."""
        self.order.extend(state, step)
        self.total, self.tokens = self.order.total, self.order.tokens

    def state_dict(self) -> dict[str, Any]:
        """Return what names the samples and their order, and what the baseline remembers."""
        return self.order.state_dict() | {"baseline": self.baseline.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Take it up. Raises DataError when the samples are others."""
        self.order.load_state_dict(state, tensors)
        self.baseline.load_state_dict(state["baseline"])


class UnpairedEvaluation:
    """Measures what the objective measures in training, on all answers that are held out."""

    def __init__(self, examples: Examples, train: Train, layout: Layout, baseline: Baseline, measure: Measure) -> None:
        """Take the answers, what they are measured from, and what asks the policy for that."""
        self.examples, self.train, self.layout, self.baseline, self.measure = examples, train, layout, baseline, measure

    def __call__(self, job: Job) -> Mapping[str, float] | None:
        """Return `loss` and the other metrics; None where a signal came."""
        rank, world = job.accelerator.process_index, job.accelerator.num_processes
        every = np.arange(len(self.examples))
        found = self.baseline.of(job.progress.step, *self.measure(self.baseline.measured, every))
        whole = cast(Sequence[UnpairedExample], [self.examples[int(index)] for index in every])
        step = with_baseline(once(self.examples, self.train, self.layout, rank, world), whole, found)
        metrics = HeldOutLoss(step)(job)
        return metrics and {**metrics, self.baseline.name: found}

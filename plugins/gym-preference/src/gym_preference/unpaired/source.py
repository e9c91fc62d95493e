"""Steps over judged answers, each with what its log-ratios are measured from, in training and in evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from torch import Tensor

from gym_core import Train
from gym_data.cache import Judged
from gym_preference.unpaired.kl_baseline import Origin
from gym_preference.unpaired.responses import rated
from gym_torch.loop.evaluation import HeldOutLoss
from gym_torch.loop.job import Job
from gym_torch.packing import Ints, Layout
from gym_torch.source import Dataset, Examples, Source, Step, once

Measure = Callable[[Examples | None, Ints], tuple[float, float]]
"""Returns the sum of the log-ratios of the chosen ones of some answers under the policy as it is, and how many they are."""


class JudgedSteps(Source):
    """The steps of a dataset."""

    def __init__(self, order: Dataset, origin: Origin, measure: Measure) -> None:
        """Take the steps of the run, what they are measured from, and what asks the policy for that."""
        self.order, self.origin, self.measure = order, origin, measure
        self.total, self.tokens = order.total, order.tokens

    def steps(self, start: int, rank: int = 0, world: int = 1) -> Iterator[Step]:
        """Yield the steps from number `start` on; as each begins, the policy is measured."""
        order, origin = self.order, self.origin
        for number, step in enumerate(order.steps(start, rank, world), start):
            chosen = order.samples(*map(int, order.bounds[number : number + 2]))
            found = origin.of(number, *self.measure(origin.measured, chosen))
            whole = cast(Sequence[Judged], [order.examples[int(index)] for index in chosen])
            yield replace(rated(step, whole, found), metrics={origin.name: found})

    def extend(self, state: Mapping[str, Any], step: int) -> None:
        """Plan on from where a shorter plan ended."""
        self.order.extend(state, step)
        self.total, self.tokens = self.order.total, self.order.tokens

    def state_dict(self) -> dict[str, Any]:
        """Return what names the samples and their order, and what the origin remembers."""
        return self.order.state_dict() | {"origin": self.origin.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Take it up. Raises DataError when the samples are others."""
        self.order.load_state_dict(state, tensors)
        self.origin.load_state_dict(state["origin"])


class HeldOutAnswers:
    """Measures what the objective measures in training, on all answers that are held out."""

    def __init__(self, examples: Examples, train: Train, layout: Layout, origin: Origin, measure: Measure) -> None:
        """Take the answers, what they are measured from, and what asks the policy for that."""
        self.examples, self.train, self.layout, self.origin, self.measure = examples, train, layout, origin, measure

    def __call__(self, job: Job) -> Mapping[str, float] | None:
        """Return `loss` and the other metrics; None where a signal came."""
        rank, world = job.accelerator.process_index, job.accelerator.num_processes
        every = np.arange(len(self.examples))
        found = self.origin.of(job.progress.step, *self.measure(self.origin.measured, every))
        whole = cast(Sequence[Judged], [self.examples[int(index)] for index in every])
        step = rated(once(self.examples, self.train, self.layout, rank, world), whole, found)
        metrics = HeldOutLoss(step)(job)
        return metrics and {**metrics, self.origin.name: found}

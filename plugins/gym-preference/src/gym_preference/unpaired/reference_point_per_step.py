"""The reference point of every step: as a step begins, the policy is measured, and the responses of the step learn the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from gym_data.examples import UnpairedExample
from gym_preference.unpaired.reference_point import ReferencePoint
from gym_preference.unpaired.samples_with_reference_point import with_reference_point
from gym_torch.packing import Ints
from gym_torch.source import Dataset, Examples, Source, Step

Measure = Callable[[Examples[UnpairedExample] | None, Ints], tuple[float, float]]
"""Returns the sum of the log-ratios of the chosen ones of some responses under the policy as it is, and how many they are."""


class UnpairedSource(Source):
    """The steps of a dataset."""

    def __init__(self, order: Dataset[UnpairedExample], reference_point: ReferencePoint, measure: Measure) -> None:
        """Take the steps of the run, what they are measured from, and what asks the policy for that."""
        self.order, self.reference_point, self.measure = order, reference_point, measure
        self.total, self.tokens = order.total, order.tokens

    def steps(self, start: int, rank: int = 0, world: int = 1) -> Iterator[Step[UnpairedExample]]:
        """Yield the steps from number `start` on; as each begins, the policy is measured."""
        order, reference_point = self.order, self.reference_point
        for number, step in enumerate(order.steps(start, rank, world), start):
            chosen = order.samples(*map(int, order.bounds[number : number + 2]))
            found = reference_point.of(number, *self.measure(reference_point.measured, chosen))
            whole = [order.examples[int(index)] for index in chosen]
            yield replace(with_reference_point(step, whole, found), metrics={reference_point.name: found})

    def extend(self, state: Mapping[str, Any], step: int) -> None:
        """Plan on from where a shorter plan ended."""
        self.order.extend(state, step)
        self.total, self.tokens = self.order.total, self.order.tokens

    def state_dict(self) -> dict[str, Any]:
        """Return what names the samples and their order, and what the reference point remembers."""
        return self.order.state_dict() | {"reference_point": self.reference_point.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Take it up. Raises DataError when the samples are others."""
        self.order.load_state_dict(state, tensors)
        self.reference_point.load_state_dict(state["reference_point"])

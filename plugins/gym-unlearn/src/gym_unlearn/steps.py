"""Steps that hold rows to forget, and with each of them as many rows to keep as the algorithm says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from gym_core import Train
from gym_data.examples import UnpairedExample
from gym_torch.packing import PACKED, Ints, Layout
from gym_torch.source import Dataset, Examples, Source, Step, share
from gym_unlearn.config import Unlearning
from gym_unlearn.samples import UnlearnSample, with_shares


@dataclass(frozen=True)
class Some:
    """Some of the samples, by their numbers."""

    examples: Examples[UnpairedExample]
    numbers: Ints

    @property
    def lengths(self) -> npt.NDArray[np.integer]:
        """Tokens of each sample."""
        return np.asarray(self.examples.lengths)[self.numbers]

    def __len__(self) -> int:
        """Return how many they are."""
        return len(self.numbers)

    def __getitem__(self, index: int, /) -> UnpairedExample:
        """Return one of them."""
        return self.examples[int(self.numbers[index])]


class ForgetRetainSteps(Source):
    """A pass over the rows to forget is an epoch, and steps count them; rows to keep have epochs of their own meanwhile."""

    def __init__(
        self,
        config: Unlearning,
        examples: Examples[UnpairedExample],
        train: Train,
        fingerprint: str = "",
        layout: Layout = PACKED,
        whole_epochs: bool = False,
    ) -> None:
        """Plan the whole run as `Dataset` does. Rows that all have one label, as in a plan without data, follow each other."""
        self.examples, self.train, self.layout = examples, train, layout
        keep = np.array([examples[number].desirable for number in range(len(examples))], dtype=bool)
        self.forget, self.keep = np.flatnonzero(~keep), np.flatnonzero(keep)
        self.each = config.drawn_per_forget() if len(self.forget) and len(self.keep) else 0
        self.counted = self.forget if len(self.forget) else self.keep
        self.order = Dataset(Some(examples, self.counted), train, fingerprint, layout, whole_epochs)
        self.beside = Dataset(Some(examples, self.keep), train, fingerprint, layout) if self.each else None
        self._planned()

    def _planned(self) -> None:
        self.total, self.bounds = self.order.total, self.order.bounds
        with_them = self.each * float(self.beside.lengths.mean()) if self.beside else 0.0
        self.tokens = self.order.tokens + round(int(self.bounds[-1]) * with_them)

    def chosen(self, first: int, end: int) -> tuple[Ints, Ints]:
        """Return the numbers of the samples to forget at these positions of the run, and of those to keep that come with them."""
        counted = self.counted[self.order.samples(first, end)]
        if self.beside is None:
            return counted, self.keep[:0]
        return counted, self.keep[self.beside.samples(first * self.each, end * self.each)]

    def steps(self, start: int, rank: int = 0, world: int = 1) -> Iterator[Step[UnlearnSample]]:
        """Yield the steps from number `start` on."""
        size = len(self.counted)
        for first, end in zip(self.bounds[start:-1].tolist(), self.bounds[start + 1 :].tolist(), strict=True):
            forget, keep = self.chosen(first, end)
            both = np.concatenate([forget, keep])
            step = share(self.examples, both, self.train, self.layout, rank, world, round(end / size, 6))
            yield with_shares(step, len(keep), len(forget))

    def largest(self, count: int) -> list[int]:
        """Return the steps whose samples to forget have the most tokens."""
        return list(self.order.largest(count))

    def extend(self, state: Mapping[str, Any], step: int) -> None:
        """Plan on from where a shorter plan ended."""
        self.order.extend(state, step)
        self._planned()

    def state_dict(self) -> dict[str, Any]:
        """Return what names the samples and their order."""
        return self.order.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Check that the samples are those of the checkpoint. Raises DataError when they are others."""
        self.order.load_state_dict(state, tensors)

"""Inputs on disk as vectors: each is asked for a few coordinates at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from gym_deltasoup.merging.updates import CHUNK, Chunk, Scorer, Span, Updates, steps
from gym_deltasoup.sources.tensor_slices import Stored


class Contribution(Protocol):
    """One input."""

    def read(self, tensor: str, begin: int, end: int) -> Tensor:
        """Return some of the numbers of its vector, counted from the beginning of a tensor: fp32."""
        ...


class Weights:
    """A whole model: its weights, or what they differ by from those of a base, subtracted in fp32."""

    def __init__(self, own: Mapping[str, Stored], base: Mapping[str, Stored] | None) -> None:
        """Hold where they lie."""
        self.own, self.base = own, base

    def read(self, tensor: str, begin: int, end: int) -> Tensor:
        """Read from both files."""
        found = self.own[tensor].read(begin, end).float()
        return found if self.base is None else found - self.base[tensor].read(begin, end).float()


class Change:
    """What was changed, as it is: a tensor that is not there did not change."""

    def __init__(self, own: Mapping[str, Stored]) -> None:
        """Hold where it lies."""
        self.own = own

    def read(self, tensor: str, begin: int, end: int) -> Tensor:
        """Read from the file."""
        found = self.own.get(tensor)
        return torch.zeros(end - begin) if found is None else found.read(begin, end).float()


class Files(Updates):
    """Several inputs."""

    def __init__(
        self,
        contributions: Sequence[Contribution],
        ids: Sequence[str],
        shapes: Mapping[str, tuple[int, ...]],
        *,
        has_base: bool,
        weights: Tensor | None = None,
        trusted: int | None = None,
        score: Scorer | None = None,
        densities: Tensor | None = None,
        most: int = CHUNK,
    ) -> None:
        """Hold them; `shapes` are those of all tensors, in the order of the coordinates."""
        sizes = [prod(shape) for shape in shapes.values()]
        ends = [*accumulate(sizes)]
        spans = [
            Span(name, end - size, end, shape[-1] if shape else 1)
            for (name, shape), size, end in zip(shapes.items(), sizes, ends, strict=True)
        ]
        super().__init__(ids, spans, has_base, weights, trusted, score, densities)
        self.contributions, self.most = contributions, most

    def chunks(self, whole_rows: bool = False, tensors: Sequence[int] | None = None) -> Iterator[Chunk]:
        """Read a chunk of each input after the other."""
        for number in range(len(self.spans)) if tensors is None else tensors:
            span = self.spans[number]
            for begin, end in steps(span, len(self.ids), whole_rows, self.most):
                values = torch.empty(len(self.ids), end - begin)
                for row, each in enumerate(self.contributions):
                    values[row] = each.read(span.name, begin - span.begin, end - span.begin)
                yield Chunk(values, begin, number)

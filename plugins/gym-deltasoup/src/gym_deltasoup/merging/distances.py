"""Squared distances between vectors, and to what can be combined of them, without looking at the vectors again.

A point `sum_i w_i x_i` whose weights sum to 1 is at `|x_k - z|^2 = (D w)_k - w' D w / 2` from each of the points, `D` their
squared distances. Zero is one of the points, so what is scaled or cut is such a point too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

EXACT = 128  #: inputs up to which distances are computed in fp64


@dataclass(frozen=True)
class Distances:
    """Squared distances of zero, the first point, and of all inputs: fp64 `[1 + inputs, 1 + inputs]`."""

    points: Tensor

    @property
    def between(self) -> Tensor:
        """Squared distances between inputs: `[inputs, inputs]`."""
        return self.points[1:, 1:]

    @property
    def norms(self) -> Tensor:
        """Norms of the inputs: `[inputs]`, not squared."""
        return self.points[0, 1:].sqrt()

    @property
    def products(self) -> Tensor:
        """Inner products of the inputs: `[inputs, inputs]`."""
        squares = self.points[0, 1:]
        return (squares[:, None] + squares[None, :] - self.between) / 2

    def to(self, weights: Tensor) -> Tensor:
        """Return the distances, not squared, of the inputs to the combination with these weights `[inputs]`."""
        return self.mixed(weights[None], keep=True).points[1:-1, -1].sqrt()

    def mixed(self, matrix: Tensor, keep: bool = False) -> Distances:
        """Return the distances of combinations `[combinations, inputs]` of the inputs; `keep` puts them behind the inputs."""
        zero = torch.zeros(1, 1 + matrix.shape[1], dtype=torch.float64)
        zero[0, 0] = 1
        weights = torch.cat([1 - matrix.sum(1, keepdim=True), matrix], 1)
        own = torch.eye(len(self.points), dtype=torch.float64) if keep else zero
        weights = torch.cat([own, weights])
        inner = weights @ self.points @ weights.T
        squares = inner.diagonal() / 2
        found = (inner - squares[:, None] - squares[None, :]).clamp(min=0)
        return Distances(found.fill_diagonal_(0))


class Sums:
    """Adds up squared distances over chunks.

    Each chunk is moved so that the median of each coordinate is zero: what all have in common, however large, takes no digits of
    what they differ by, and no hostile input can move the median far.
    """

    def __init__(self, inputs: int) -> None:
        """Begin at zero."""
        self.gram = torch.zeros(1 + inputs, 1 + inputs, dtype=torch.float64)

    def add(self, values: Tensor) -> None:
        """Add a chunk `[inputs, coordinates]`."""
        work = values.double() if len(values) <= EXACT else values
        middle = work.median(0).values
        moved = torch.cat([-middle[None], work - middle])
        self.gram += (moved @ moved.T).double()

    def distances(self) -> Distances:
        """Return the distances."""
        squares = self.gram.diagonal()
        found = (squares[:, None] + squares[None, :] - 2 * self.gram).clamp(min=0)
        return Distances(((found + found.T) / 2).fill_diagonal_(0))

"""Squared distances between vectors, and to what can be combined of them, without looking at the vectors again.

A point `sum_i w_i x_i` whose weights sum to 1 is at `|x_k - z|^2 = (D w)_k - w' D w / 2` from each of the points, `D` their
squared distances. Zero is one of the points, so what is scaled or cut is such a point too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gym_deltasoup.merging.sorted_coordinates import middle_of, sorted_columns

EXACT = 128  #: inputs up to which distances are computed in fp64
BLOCKS = 8  #: parts of more inputs, each of which is multiplied with those before it alone


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
        whole = torch.cat([1 - weights.sum(0, keepdim=True), weights])
        inner = self.points @ whole
        return (inner[1:] - whole @ inner / 2).clamp(min=0).sqrt()

    def scaled(self, factors: Tensor) -> Distances:
        """Return the distances of inputs that are each multiplied by a factor `[inputs]`."""
        # |a x - b y|^2 = a b |x - y|^2 + (a - b) (a |x|^2 - b |y|^2), which loses no digits where a = b
        longer = torch.cat([factors.new_ones(1), factors])
        squares = longer * self.points[0]
        found = longer[:, None] * longer * self.points
        found += (longer[:, None] - longer) * (squares[:, None] - squares)
        return Distances(found.clamp_(min=0).fill_diagonal_(0))

    def mixed(self, matrix: Tensor) -> Distances:
        """Return the distances of combinations `[combinations, inputs]` of the inputs."""
        zero = torch.zeros(1, 1 + matrix.shape[1], dtype=torch.float64)
        zero[0, 0] = 1
        weights = torch.cat([zero, torch.cat([1 - matrix.sum(1, keepdim=True), matrix], 1)])
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
        middle = middle_of(sorted_columns(work))
        moved = work.new_empty(1 + len(work), work.shape[1])
        torch.neg(middle, out=moved[0])
        torch.sub(work, middle, out=moved[1:])
        for rows in torch.arange(len(moved)).chunk(BLOCKS if len(values) > EXACT else 1):
            begin, end = int(rows[0]), int(rows[-1]) + 1  # what is right of the diagonal is the same
            self.gram[begin:end, :end] += moved[begin:end] @ moved[:end].T

    def distances(self) -> Distances:
        """Return the distances."""
        gram = self.gram.tril() + self.gram.tril(-1).T
        squares = gram.diagonal()
        return Distances((squares[:, None] + squares[None, :] - 2 * gram).clamp(min=0).fill_diagonal_(0))

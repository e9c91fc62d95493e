"""Near copies counted once: names cost nothing, so whoever copies an input would give it as many votes as it likes."""

from __future__ import annotations

import torch
from torch import Tensor


def families(squared: Tensor, radius: float) -> list[list[int]]:
    """Return which inputs are near copies of each other, in the order of their first members: `[inputs, inputs]` is squared.

    Two are near where their distance is at most `radius` medians of all distances; so are those that others in between join.
    """
    count = len(squared)
    apart = squared[tuple(torch.triu_indices(count, count, 1))]
    if not len(apart):
        return [[number] for number in range(count)]
    near = squared <= radius**2 * apart.median()
    first, before = torch.arange(count), None
    while before is None or not torch.equal(first, before):
        first, before = torch.where(near, first, count).amin(1), first
    members: dict[int, list[int]] = {}
    for number, which in enumerate(first.tolist()):
        members.setdefault(which, []).append(number)
    return list(members.values())


def means(groups: list[list[int]], inputs: int) -> Tensor:
    """Return the fp64 matrix `[groups, inputs]` that takes the mean of each."""
    matrix = torch.zeros(len(groups), inputs, dtype=torch.float64)
    for row, group in enumerate(groups):
        matrix[row, group] = 1 / len(group)
    return matrix

"""Cuts matrices into the blocks of numbers that share scales, and puts codes back in their places."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

POWERS = 10  #: iterations for the leading singular pair; the entries are not negative, so they converge fast


class Cut(NamedTuple):
    """Matrices as blocks."""

    numbers: Tensor  #: `[blocks, n]`
    weights: Tensor  #: `[blocks or 1, n]`; zero for what fills blocks up
    outer: Tensor | None = None  #: `[stack, rows, 1]` of rank-1 scales, by which and by `inner` numbers were divided
    inner: Tensor | None = None  #: `[stack, 1, columns]`


def cut(change: Tensor, weights: Tensor, scales: str, group: int | None) -> Cut:
    """Return matrices `[stack, rows, columns]` as blocks; weights are `[stack or 1, 1, columns]`, one for each column."""
    stack, rows, columns = change.shape
    if scales == "tensor":
        return Cut(change.flatten(1), weights.expand(-1, rows, -1).flatten(1))
    if scales == "row":
        wide = weights if len(weights) == 1 else weights.expand(-1, rows, -1)
        return Cut(change.flatten(0, 1), wide.flatten(0, 1))
    if scales == "col":  # all numbers of a block count the same
        return Cut(change.mT.flatten(0, 1), change.new_ones(1, rows))
    if scales == "group":
        assert group
        pad = -columns % group
        numbers = functional.pad(change, (0, pad)).unflatten(-1, (-1, group))
        each = functional.pad(weights.expand(stack, rows, -1), (0, pad)).unflatten(-1, (-1, group))
        return Cut(numbers.flatten(0, 2), each.flatten(0, 2))
    outer, inner = rank_one(change.abs())
    size = outer * inner
    numbers = torch.where(size > 0, change / size.clamp(min=1e-30), 0.0)
    return Cut(numbers.flatten(1), (size.square() * weights).flatten(1), outer, inner)


def join(codes: Tensor, shape: tuple[int, int, int], scales: str) -> Tensor:
    """Return what belongs to each number of the blocks as matrices of this shape, `[stack, rows, columns]`."""
    stack, rows, columns = shape
    if scales == "col":
        return codes.view(stack, columns, rows).mT.contiguous()
    if scales == "group":
        return codes.view(stack, rows, -1)[..., :columns].contiguous()
    return codes.view(shape)


def rank_one(sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Return r `[stack, rows, 1]` and c `[stack, 1, columns]`, not negative, with r c next to sizes `[stack, rows, columns]`.

    That is the leading singular pair; a power of two is taken out of c, so that both are of one size.
    """
    inner = sizes.mean(1, keepdim=True)
    for _ in range(POWERS):
        outer = (sizes * inner).sum(2, keepdim=True) / inner.square().sum(2, keepdim=True).clamp(min=1e-30)
        inner = (sizes * outer).sum(1, keepdim=True) / outer.square().sum(1, keepdim=True).clamp(min=1e-30)
    return outer, inner

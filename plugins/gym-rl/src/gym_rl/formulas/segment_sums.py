"""Sums over sequences of unequal length, whose tokens lie one after another: values `[n]`, owners `[n]`, no padding."""

from __future__ import annotations

import torch
from torch import Tensor


def sums(values: Tensor, owner: Tensor, count: int) -> Tensor:
    """Return the sum of the values of each owner, `[count]`; 0 for one without values."""
    return torch.zeros(count, dtype=values.dtype, device=values.device).index_add(0, owner, values)


def lengths(owner: Tensor, count: int) -> Tensor:
    """Return the number of values of each owner, `[count]`, int64."""
    return torch.zeros(count, dtype=torch.int64, device=owner.device).index_add(0, owner, torch.ones_like(owner))


def means(values: Tensor, owner: Tensor, count: int) -> Tensor:
    """Return the mean of the values of each owner, `[count]`; 0 for one without values."""
    return sums(values, owner, count) / lengths(owner, count).clamp(min=1)


def rows(values: Tensor, owner: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the values as `[count, longest]`, zeros behind, and the places `[n]` that they took in it, flat."""
    size = lengths(owner, count)
    longest = int(size.max()) if count else 0
    order = torch.argsort(owner, stable=True)
    place = torch.empty_like(owner)
    starts = torch.cumsum(size, 0) - size
    place[order] = torch.arange(len(owner), device=owner.device) - starts[owner[order]]
    flat = owner * longest + place
    table = torch.zeros(count * longest, dtype=values.dtype, device=values.device)
    table[flat] = values
    return table.view(count, longest), flat

"""Order statistics of magnitudes, exact, of vectors that are read in chunks: digit by digit of their bits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gym_deltasoup.merging.updates import Updates

DIGIT = 16  #: bits that are looked at in a pass
INTEGERS = {torch.float32: (torch.int32, 32), torch.float64: (torch.int64, 64)}


def magnitudes(updates: Updates, ranks: Callable[[int, Tensor], Tensor], scope: str) -> Tensor:
    """Return the magnitude with rank `ranks(size, densities)`, 1 the smallest, of each input in each scope: `[inputs, scopes]`.

    Ranks and densities, NaN where an input has none, are `[inputs]`.

    The bits of a positive number order as the number does. Each pass counts the next 16 of them, so memory is that of
    65,536 counts for each input, whatever the size.
    """
    found = []
    for members in updates.scopes(scope):
        size = sum(updates.spans[number].end - updates.spans[number].begin for number in members)
        found.append(_ranked(updates, members, ranks(size, updates.density(members)).clamp(1, size)) if size else None)
    zero = torch.zeros(len(updates.ids))
    return torch.stack([zero if each is None else each for each in found], 1)


def _ranked(updates: Updates, members: list[int], ranks: Tensor) -> Tensor:
    count = len(updates.ids)
    kind = next(updates.chunks(tensors=members)).values.dtype
    integer, width = INTEGERS[kind]
    prefix = torch.zeros(count, dtype=torch.int64)
    left = ranks.clone()
    for shift in range(width - DIGIT, -1, -DIGIT):
        counts = torch.zeros(count, 2**DIGIT, dtype=torch.int64)
        for chunk in updates.chunks(tensors=members):
            bits = chunk.values.abs().contiguous().view(integer).long()
            for row in range(count):
                own = bits[row] if shift == width - DIGIT else bits[row][bits[row] >> (shift + DIGIT) == prefix[row]]
                counts[row] += torch.bincount((own >> shift) & (2**DIGIT - 1), minlength=2**DIGIT)
        below = counts.cumsum(1)
        digit = (below < left[:, None]).sum(1)
        left -= torch.where(digit > 0, below.gather(1, (digit - 1).clamp(min=0)[:, None])[:, 0], 0)
        prefix = (prefix << DIGIT) | digit
    return prefix.to(integer).view(kind)

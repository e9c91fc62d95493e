"""Short forms of long vectors that keep their angles: a count sketch (Charikar et al. 2002; Weinberger et al. 2009, lemma 2).

Each coordinate is added to one of `WIDTH` sums, with a sign; a seed and the name of the coordinate decide which. Of a difference
of two vectors the squared norm is kept on average, with a relative standard deviation of at most `sqrt(2 / WIDTH)`, 2 %. Who
knows the seed can make vectors of which the sketch is wrong: it is to be secret.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gym_deltasoup.merging.drawn import uniform
from gym_deltasoup.merging.updates import Updates

WIDTH = 4096


def sketches(updates: Updates, seed: int, rows: Sequence[int] | None = None) -> Tensor:
    """Return the sketches of inputs, by default of all: fp64 `[rows, WIDTH]`. Chunks and other inputs change nothing in them."""
    chosen = torch.arange(len(updates.ids)) if rows is None else torch.tensor(rows)
    found = torch.zeros(len(chosen), WIDTH, dtype=torch.float64)
    for chunk in updates.chunks():
        span = updates.spans[chunk.tensor]
        begin = chunk.begin - span.begin
        drawn = uniform(seed, span.name, begin, begin + chunk.values.shape[1]) * (2 * WIDTH)
        place = drawn.long()  # the last bit is the sign
        found.index_add_(1, place // 2, chunk.values[chosen].double() * (1 - 2 * (place % 2)))
    return found


def cosines(some: Tensor, others: Tensor) -> Tensor:
    """Return the cosines of the rows of two matrices of sketches, from the distances of unit vectors: 0 where one is zero."""
    units = [each / each.norm(dim=1, keepdim=True).clamp(min=1e-300) for each in (some, others)]
    apart = torch.cdist(units[0], units[1], compute_mode="donot_use_mm_for_euclid_dist") ** 2
    zero = (some.norm(dim=1) == 0)[:, None] | (others.norm(dim=1) == 0)
    return torch.where(zero, 0.0, 1 - apart / 2)

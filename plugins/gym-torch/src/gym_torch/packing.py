"""Layouts of batches: samples packed into full rows, padded to one length, or computed one by one.

Packing is what a run does; `gym_torch.model.layout_support` finds out what it falls back to. None of the three changes what is
trained on.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil

import numpy as np
import numpy.typing as npt

from gym_core import Train
from gym_torch.batch import Batch, Example, alone, packed, padded

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """Two decisions that belong together."""

    name: str
    lay_out: Callable[[Sequence[Example], Sequence[int | None]], Batch]
    """Makes one batch of examples; the second argument names their prefixes, see `gym_torch.batch.packed`."""
    cut: Callable[[Ints, Train], list[Ints]]
    """Deals the samples of a step, given by their lengths, out to batches; the heaviest batch comes first."""


def fill(lengths: Ints, train: Train) -> list[Ints]:
    """Fill rows of `batch_tokens` tokens, or rows of `batch_size` samples that weigh about the same.

    A sample longer than `batch_tokens` gets a row of its own. Best fit, the longest first: at most 11/9 of the fewest
    rows possible, and one more (Johnson 1973).
    """
    ranked = [int(index) for index in np.argsort(-lengths, kind="stable")]
    budget = train.batch_tokens
    rows = _by_tokens(ranked, lengths, budget) if isinstance(budget, int) else _by_count(ranked, lengths, train)
    heaviest_first = sorted(rows, key=lambda row: -int(lengths[row].sum()))
    return [np.array(sorted(row), dtype=np.int64) for row in heaviest_first]


def bucket(lengths: Ints, train: Train) -> list[Ints]:
    """Put samples of like lengths together: `batch_size` of them, or as many as fit into `batch_tokens` with padding."""
    ranked = np.argsort(-lengths, kind="stable")
    batches, start = [], 0
    while start < len(ranked):
        longest = int(lengths[ranked[start]])
        rows = max(1, train.batch_tokens // longest) if isinstance(train.batch_tokens, int) else train.batch_size
        batches.append(ranked[start : start + rows])
        start += rows
    return batches


PACKED = Layout("packed", packed, fill)
PADDED = Layout("padded", padded, bucket)
ALONE = Layout("alone", alone, bucket)
ORDER = (
    PACKED,
    PADDED,
    ALONE,
)  #: the quickest first; whatever a model computes exactly, it computes exactly in those after it


def _by_tokens(ranked: Sequence[int], lengths: Ints, capacity: int) -> list[list[int]]:
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # tokens that still fit and the row they fit into, ascending
    for sample in ranked:
        size = int(lengths[sample])
        at = bisect_left(room, (size, -1))
        free, row = room.pop(at) if at < len(room) else (capacity, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(sample)
        insort(room, (free - size, row))
    return rows


def _by_count(ranked: Sequence[int], lengths: Ints, train: Train) -> list[list[int]]:
    rows: list[list[int]] = [[] for _ in range(ceil(len(ranked) / train.batch_size))]
    lightest = [(0, row) for row in range(len(rows))]  # a heap of the rows that take more, by their tokens
    for sample in ranked:
        weight, row = heappop(lightest)
        rows[row].append(sample)
        if len(rows[row]) < train.batch_size:
            heappush(lightest, (weight + int(lengths[sample]), row))
    return rows

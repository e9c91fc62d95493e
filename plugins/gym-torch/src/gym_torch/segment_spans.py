"""Positions of the segments of a packed row, and which tokens attend to which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

UNIT = 32  #: keys of a segment are filled up to a multiple of so many where they are copied
BLOCK = 128  #: queries and keys of a block of a mask

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Forest:
    """Segments by what they continue: trees, the one with most to compute first; a prefix before what continues it."""

    nodes: Ints  #: [segments, 5]: start, length, number of the prefix or -1, first position, and place in its tree
    members: Ints  #: [segments], numbers of segments, tree after tree
    bounds: Ints  #: [trees + 1], where each tree begins in `members`
    size: int  #: most tokens of a tree, each segment filled up to `UNIT`


@dataclass(frozen=True)
class Bounds:
    """Where queries and keys of segments lie, in the form that kernels for segments of different lengths take (varlen)."""

    queries: Tensor  #: [segments + 1] int32: where the queries of each segment begin, and the end
    keys: Tensor  #: the same of its keys, which are those of its lineage one after another
    most_queries: int
    most_keys: int
    order: tuple[int, ...]  #: numbers of the segments whose keys follow one another; empty where each sees itself alone


class Spans:
    """Where the segments of a packed row lie: they follow one another, a prefix before what continues it."""

    def __init__(self, lengths: Sequence[int], prefixes: Sequence[int | None] = ()) -> None:
        """Describe segments by their lengths in tokens and the number of the segment that each one continues."""
        self.lengths = tuple(lengths)
        self.prefixes = tuple(prefixes) or (None,) * len(self.lengths)
        continued = [-1 if before is None else before for before in self.prefixes]
        #: `[2 * segments]`, lengths and then prefixes, -1 for none; what compiles reads it, and never meets a size of 1.
        self.table = torch.tensor([*self.lengths, *continued])
        self._masks: dict[int | None, BlockMask] = {}
        self._bounds: dict[torch.device, Bounds] = {}

    @classmethod
    def of(cls, table: Tensor) -> Spans:
        """Return the segments that a `table` describes."""
        lengths, continued = table.view(2, -1).tolist()
        return cls(lengths, [None if before < 0 else before for before in continued])

    def lineage(self, segment: int) -> list[int]:
        """Return the segments that one attends to, from the first prefix down to itself."""
        found = [segment]
        while (before := self.prefixes[found[0]]) is not None:
            found.insert(0, before)
        return found

    @cached_property
    def forest(self) -> Forest:
        """The segments as trees."""
        nodes: list[tuple[int, int, int, int, int]] = []
        trees: dict[int, list[int]] = {}
        root: list[int] = []
        sizes: dict[int, int] = {}
        work: dict[int, int] = {}
        start = 0
        for own, (length, before) in enumerate(zip(self.lengths, self.prefixes, strict=True)):
            root.append(own if before is None else root[before])
            position = 0 if before is None else nodes[before][3] + nodes[before][1]
            place = sizes.get(root[own], 0)
            nodes.append((start, length, -1 if before is None else before, position, place))
            trees.setdefault(root[own], []).append(own)
            sizes[root[own]] = place - -length // UNIT * UNIT
            work[root[own]] = work.get(root[own], 0) + length * (2 * position + length)
            start += length
        order = sorted(trees, key=lambda tree: -work[tree])
        return Forest(
            np.array(nodes, dtype=np.int64),
            np.array([own for tree in order for own in trees[tree]], dtype=np.int64),
            np.cumsum([0, *(len(trees[tree]) for tree in order)], dtype=np.int64),
            max(sizes.values()),
        )

    @cached_property
    def owners(self) -> Tensor:
        """Number of the segment of each token, `[tokens]`."""
        return torch.repeat_interleave(torch.arange(len(self.lengths)), torch.tensor(self.lengths))

    @cached_property
    def positions(self) -> Tensor:
        """Position of each token in its lineage, `[tokens]`."""
        starts = [sum(self.lengths[other] for other in self.lineage(own)[:-1]) for own in range(len(self.lengths))]
        counts = [torch.arange(start, start + size) for start, size in zip(starts, self.lengths, strict=True)]
        return torch.cat(counts)

    @cached_property
    def related(self) -> Tensor:
        """Whether segment i attends to segment j, `[segments, segments]`."""
        table = torch.zeros(len(self.lengths), len(self.lengths), dtype=torch.bool)
        for own in range(len(self.lengths)):
            table[own, self.lineage(own)] = True
        return table

    def mask(self, window: int | None, device: torch.device) -> Callable[[Any, Any, Tensor, Tensor], Tensor]:
        """Return the rule of who sees whom by index into the row, in the form that flex_attention takes."""
        owners, positions, related = (part.to(device) for part in (self.owners, self.positions, self.related))

        def visible(_batch: Any, _head: Any, query: Tensor, key: Tensor) -> Tensor:
            near = positions[query] - positions[key] < (window or len(owners))
            return (query >= key) & related[owners[query], owners[key]] & near

        return visible

    def bounds(self, device: torch.device) -> Bounds:
        """Return where queries and keys of each segment lie, made once for all layers."""
        if device not in self._bounds:
            seen = [self.lineage(own) for own in range(len(self.lengths))]
            sizes = [sum(self.lengths[other] for other in each) for each in seen]
            ends = (torch.tensor([0, *accumulate(each)], dtype=torch.int32) for each in (self.lengths, sizes))
            queries, keys = (each.to(device) for each in ends)
            order = tuple(other for each in seen for other in each) if any(len(each) > 1 for each in seen) else ()
            self._bounds[device] = Bounds(queries, keys, max(self.lengths), max(sizes), order)
        return self._bounds[device]

    def block_mask(self, window: int | None, device: torch.device) -> BlockMask:
        """Return the block mask of that rule, made once for all layers."""
        if window not in self._masks:
            some, whole = self._blocks(window)
            listed = [_listed(part, device) for part in (some & ~whole, whole)]
            count = sum(self.lengths)
            self._masks[window] = BlockMask.from_kv_blocks(
                *listed[0], *listed[1], BLOCK_SIZE=BLOCK, mask_mod=self.mask(window, device), seq_lengths=(count, count)
            )
        return self._masks[window]

    def _blocks(self, window: int | None) -> tuple[Bools, Bools]:
        """Return of which blocks `[of queries, of keys]` some is seen, and which are seen whole, by where segments lie.

        No table of tokens by tokens is made, which would have 16 billion entries for 128k tokens.
        """
        count = sum(self.lengths)
        begins = np.arange(0, count, BLOCK)
        some = np.zeros((len(begins), len(begins)), dtype=np.bool_)
        whole = np.broadcast_to(begins + BLOCK <= count, some.shape) & (begins + BLOCK <= count)[:, None]
        nodes, reach = self.forest.nodes, window or count
        for own, (start, length, _, position, _) in enumerate(nodes):
            for block in range(start // BLOCK, -(-(start + length) // BLOCK)):
                rows = max(start, block * BLOCK), min(start + length, (block + 1) * BLOCK) - 1
                first, last = (row - start + position for row in rows)
                covered = np.zeros(len(begins), dtype=np.int64)
                for begin, size, _, at, _ in nodes[self.lineage(own)]:
                    by_some = _overlap(begins, begin, size, at, first - reach + 1, last)
                    by_all = _overlap(begins, begin, size, at, last - reach + 1, first)
                    some[block] |= by_some > 0
                    covered += by_all
                whole[block] &= covered == BLOCK
        return some, whole


def _overlap(begins: Ints, begin: int, size: int, at: int, oldest: int, newest: int) -> Ints:
    """Return how many keys of each block belong to a segment and to the positions from `oldest` to `newest`.

    The segment begins at index `begin` with position `at`, and has `size` tokens.
    """
    low, high = max(oldest, at) - at + begin, min(newest + 1, at + size) - at + begin
    found: Ints = (np.minimum(high, begins + BLOCK) - np.maximum(low, begins)).clip(0)
    return found


def _listed(seen: Bools, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return for each block of queries how many blocks of keys are seen, and their numbers first: `[1, 1, blocks(, blocks)]`."""
    counts, numbers = seen.sum(1), np.argsort(~seen, axis=1, kind="stable")
    found = (torch.from_numpy(part).to(device, torch.int32)[None, None] for part in (counts, numbers))
    return next(found), next(found)

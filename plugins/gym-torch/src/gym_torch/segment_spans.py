"""Where the segments of a packed row lie, and which tokens of it see which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

UNIT = 32  #: keys of a segment are filled up to a multiple of so many where they are copied

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Forest:
    """Segments by what they continue: trees, the one with most to compute first; a prefix before what continues it."""

    nodes: Ints  #: [segments, 5]: start, length, number of the prefix or -1, first position, and place in its tree
    members: Ints  #: [segments], numbers of segments, tree after tree
    bounds: Ints  #: [trees + 1], where each tree begins in `members`
    size: int  #: most tokens of a tree, each segment filled up to `UNIT`


class Spans:
    """Where the segments of a packed row lie: they follow one another, a prefix before what continues it."""

    def __init__(self, lengths: Sequence[int], prefixes: Sequence[int | None] = ()) -> None:
        """Describe segments by their lengths in tokens and the number of the segment that each one continues."""
        self.lengths = tuple(lengths)
        self.prefixes = tuple(prefixes) or (None,) * len(self.lengths)
        self._masks: dict[int | None, BlockMask] = {}

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

    def block_mask(self, window: int | None, device: torch.device) -> BlockMask:
        """Return the block mask of that rule, made once for all layers."""
        if window not in self._masks:
            count = len(self.owners)
            self._masks[window] = create_block_mask(
                self.mask(window, device), None, None, count, count, device=str(device)
            )
        return self._masks[window]

"""Where the segments of a packed row lie, and which tokens of it see which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask


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

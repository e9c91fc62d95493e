"""Keys and values of a batch whose rows enter and leave: tensors only, nothing of tokens or models.

Rows are padded on the left: a row of 3 tokens in a cache of width 5 fills the last 3 columns, and the 2 before them hold
any finite numbers, which the caller has to mask. Everything is written in place, because a copy of the cache costs as
much as a decoding step: a step writes one column, a row that enters is copied once, a row that leaves is overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

ROOM = 128  #: columns allocated ahead; the rows are moved once in so many steps


class Layer(DynamicLayer):
    """One layer: keys and values `[rows, heads, width, head_dim]` are windows of larger buffers."""

    def __init__(self) -> None:
        """Start without rows and without a buffer."""
        super().__init__()
        self.rows = self.start = self.stop = 0
        self._keys = self._values = torch.empty(0, 0, 0, 0)

    def _view(self) -> None:
        self.keys = self._keys[: self.rows, :, self.start : self.stop]
        self.values = self._values[: self.rows, :, self.start : self.stop]

    def _reserve(self, rows: int, stop: int, columns: int) -> None:
        """Allocate buffers for `rows` rows, with the window ending at column `stop` and `columns` free columns behind it."""
        width = self.stop - self.start
        buffers = []
        for buffer, window in ((self._keys, self.keys), (self._values, self.values)):
            _, heads, held, dim = buffer.shape  # a value may be narrower than a key
            grown = (max(rows, len(buffer)), heads, max(stop + columns, held), dim)
            # Zeros, because a masked column still meets the values, with weight 0: it must be finite.
            to = buffer if grown == buffer.shape else window.new_zeros(grown)
            to[: self.rows, :, stop - width : stop] = window.clone() if to is buffer else window
            buffers.append(to)
        self._keys, self._values = buffers
        self.start, self.stop = stop - width, stop

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append columns `[rows, heads, new, head_dim]` and return all of the window."""
        new = key_states.shape[2]
        if self.stop + new > self._keys.shape[2]:
            self._reserve(self.rows, self.stop - self.start, new + ROOM)
        self._keys[: self.rows, :, self.stop : self.stop + new] = key_states
        self._values[: self.rows, :, self.stop : self.stop + new] = value_states
        self.stop += new
        self._view()
        return self.keys, self.values

    @property
    def buffers(self) -> tuple[Tensor, Tensor]:
        """Keys and values of the whole buffers, whose addresses stay while tokens are written."""
        return self._keys, self._values

    def make_room(self, rows: int, grain: int) -> None:
        """Allocate room for `rows` rows and a column behind the window; where there is none, add `grain` columns."""
        if rows > len(self._keys) or self.stop == self._keys.shape[2]:
            width = self.stop - self.start
            self._reserve(rows, width, grain - width % grain)
            self._view()

    def take_in(self) -> None:
        """Extend the window by the column behind it, which the caller has written."""
        self.stop += 1
        self._view()

    def keep(self, rows: Sequence[int], width: int) -> None:
        """Move row `rows[i]` to place i, drop the others, and narrow the window to the last `width` columns."""
        moved = [(to, row) for to, row in enumerate(rows) if to != row]
        if moved:
            target, source = (torch.tensor(side, device=self.keys.device) for side in zip(*moved, strict=True))
            for part in (self.keys, self.values):
                part[target, :, -width:] = part[source, :, -width:]
        self.rows, self.start = len(rows), self.stop - width
        self._view()

    def take_back(self, columns: int) -> None:
        """Remove the last `columns` columns of all rows."""
        self.stop -= columns
        self._view()

    def reserve(self, keys: Tensor, values: Tensor, count: int, width: int) -> None:
        """Allocate room for `count` more rows of width `width`, of the shape and dtype of `keys` and `values`."""
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
            self._keys, self._values = keys[:0, :, :0], values[:0, :, :0]
            self._view()
        if self.rows + count > len(self._keys) or width > self.stop:
            self._reserve(self.rows + count, max(width, self.stop - self.start), ROOM)
            self._view()

    def write(self, keys: Tensor, values: Tensor, index: Tensor) -> None:
        """Write the rows `index` `[new rows]` of other keys and values behind the present rows, where room was reserved."""
        rows, begin = self.rows + len(index), self.stop - keys.shape[2]
        for buffer, new in ((self._keys, keys), (self._values, values)):
            # Who was here before may have left numbers that are not finite.
            buffer[: self.rows, :, begin : self.start] = 0
            buffer[self.rows : rows, :, self.start : begin] = 0
            buffer[self.rows : rows, :, begin : self.stop] = new[index]

    def extend(self, count: int, width: int) -> None:
        """Count `count` more rows of width `width`, which `write` wrote, as present."""
        self.rows, self.start = self.rows + count, min(self.start, self.stop - width)
        self._view()


class RowCache(Cache):
    """The cache of all layers. The first rows to enter decide how many layers there are."""

    layers: list[Layer]

    def __init__(self) -> None:
        """Start without rows."""
        super().__init__(layers=[])

    def keep(self, rows: Sequence[int], width: int) -> None:
        """Move row `rows[i]` to place i, drop the others, and keep the last `width` columns."""
        for layer in self.layers:
            layer.keep(rows, width)

    def take_back(self, columns: int) -> None:
        """Remove the last `columns` columns of all rows."""
        for layer in self.layers:
            layer.take_back(columns)

    def reserve(self, like: Cache, count: int, width: int) -> None:
        """Allocate room for `count` more rows of width `width` from another cache; if that fails, no layer has changed."""
        if not self.layers:
            self.layers = [Layer() for _ in like.layers]
        for layer, new in zip(self.layers, like.layers, strict=True):
            layer.reserve(new.keys, new.values, count, width)

    def append(self, other: Cache, index: Tensor) -> None:
        """Add the rows `index` `[new rows]` of another cache; a row may come more than once. An error changes nothing."""
        width = other.get_seq_length()
        self.reserve(other, len(index), width)
        for layer, new in zip(self.layers, other.layers, strict=True):
            layer.write(new.keys, new.values, index)
        for layer in self.layers:
            layer.extend(len(index), width)


def fill(kept: Sequence[int]) -> list[int]:
    """Return an order of the kept rows (ascending) in which few of them move: rows past the end fill the gaps."""
    count = len(kept)
    staying = {row for row in kept if row < count}
    movers = iter(row for row in kept if row >= count)
    return [row if row in staying else next(movers) for row in range(count)]

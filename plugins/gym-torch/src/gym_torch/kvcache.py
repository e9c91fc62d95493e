"""Keys and values of a batch whose rows come and go. It knows tensors only, nothing of tokens or models.

Rows are aligned at their right end: a row of 3 in a cache of width 5 fills the last 3 columns, and the 2 before it hold
anything finite. Masking them is up to the caller.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.cache_utils import Cache, DynamicLayer

ROOM = 32  #: columns allocated ahead, so that a decoding step does not copy the whole cache


class Layer(DynamicLayer):
    """One layer: keys and values `[rows, heads, width, head_dim]`, written in place while there is room."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append columns and return all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
            self._keys, self._values = self.keys, self.values
        start, stop = self.keys.shape[2], self.keys.shape[2] + key_states.shape[2]
        if stop > self._keys.shape[2]:
            self._keys = pad(self.keys, (0, 0, 0, stop + ROOM - start))
            self._values = pad(self.values, (0, 0, 0, stop + ROOM - start))
        self._keys[:, :, start:stop] = key_states
        self._values[:, :, start:stop] = value_states
        self.keys, self.values = self._keys[:, :, :stop], self._values[:, :, :stop]
        return self.keys, self.values

    def replace(self, keys: Tensor, values: Tensor) -> None:
        """Hold other keys and values."""
        self.keys = self._keys = keys
        self.values = self._values = values


class RowCache(Cache):
    """The cache of all layers."""

    def __init__(self) -> None:
        """Start without rows; the first forward pass decides how many there are."""
        super().__init__(layer_class_to_replicate=Layer)

    def select(self, rows: Tensor, width: int) -> None:
        """Keep these rows `[new rows]` (an index may come twice) and the last `width` columns."""
        for layer in self.layers:
            layer.replace(layer.keys[rows, :, -width:], layer.values[rows, :, -width:])

    def append(self, other: RowCache) -> None:
        """Add the rows of another cache below, padding the narrower of the two on the left."""
        width = max(self.get_seq_length(), other.get_seq_length())
        for layer, new in zip(self.layers, other.layers, strict=True):
            layer.replace(
                *(
                    torch.cat([pad(part, (0, 0, width - part.shape[2], 0)) for part in parts])
                    for parts in ((layer.keys, new.keys), (layer.values, new.values))
                )
            )

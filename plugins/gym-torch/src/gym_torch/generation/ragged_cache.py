"""Keys and values of rows of different lengths without padding, each from the first column of its row on: tensors only.

A step writes behind the last token of each row, so rows may grow by different numbers of tokens, and drop their last tokens at no
cost. Prompts that several rows continue are kept once, apart from the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

ROOM = 128  #: columns allocated ahead, or half of those there are: rows move once in so many steps


class Block:
    """Some rows of keys and values of one layer, `[rows, heads, columns, head_dim]` each, with room to grow."""

    def __init__(self, dtype: torch.dtype) -> None:
        """Begin without buffers."""
        self.parts: list[Tensor] = []
        self._dtype = dtype

    def reserve(self, like: Tensor, rows: int, columns: int, used: int, more: int = 0) -> None:
        """Allocate room for `rows` rows of `columns` columns; the first `used` rows are kept."""
        if not self.parts:
            self.parts = [like.new_empty(0, like.shape[1], 0, like.shape[3], dtype=self._dtype) for _ in range(2)]
        held, _, width, _ = self.parts[0].shape
        if rows <= held and columns <= width:
            return
        wider = width if columns <= width else columns + max(more, width // 2 if width else 0)
        for number, part in enumerate(self.parts):
            grown = part.new_empty(max(rows, held), part.shape[1], wider, part.shape[3])
            grown[:used, :, :width] = part[:used]
            self.parts[number] = grown

    def write(self, row: int, keys: Tensor, values: Tensor) -> None:
        """Write keys and values `[heads, length, head_dim]` into a row."""
        for part, new in zip(self.parts, (keys, values), strict=True):
            part[row, :, : new.shape[1]] = new

    def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Move the first `lengths[i]` columns of row `rows[i]` to row i; see `gym_torch.generation.kv_cache.fill`."""
        for to, row in enumerate(rows):
            if to != row:
                for part in self.parts:
                    part[to, :, : lengths[to]] = part[row, :, : lengths[to]]


class Passing(DynamicLayer):
    """The cache object that a model is given: it returns new keys and values unchanged, as the attention kernel stores them."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return both."""
        return key_states, value_states


class RaggedCache:
    """The rows of all layers. The first to enter decide how many layers there are."""

    def __init__(self, dtype: torch.dtype) -> None:
        """Start without rows; keys and values are kept in a precision."""
        self._dtype = dtype
        self.rows: list[Block] = []
        self.prompts: list[Block] = []
        self.lengths: list[int] = []  #: tokens of each row, without those of its prompt in `prompts`
        self.numbers: list[int] = []  #: its prompt, or -1
        self.prompt_lengths: list[int] = []
        self.passing = Cache(layers=[])

    def append(self, cache: Cache, lengths: Sequence[int], places: Sequence[int]) -> None:
        """Add rows that begin with texts of a cache, aligned at the right. If it fails, nothing has changed.

        Args:
            cache: keys and values `[texts, heads, width, head_dim]` of each layer.
            lengths: tokens of each text.
            places: for each new row its text; a text of several rows is kept once.

        """
        if not self.rows:
            self.rows, self.prompts = ([Block(self._dtype) for _ in cache.layers] for _ in range(2))
            self.passing = Cache(layers=[Passing() for _ in cache.layers])
        shared = [text for text in range(len(lengths)) if places.count(text) > 1]
        old, had = len(self.lengths), len(self.prompt_lengths)
        own = self.lengths + [0 if text in shared else lengths[text] for text in places]
        starts = self.prompt_lengths + [lengths[text] for text in shared]
        layers = list(zip(cache.layers, self.rows, self.prompts, strict=True))
        for layer, rows, prompts in layers:
            rows.reserve(layer.keys, len(own), max(own) + 1, old, ROOM)
            prompts.reserve(layer.keys, len(starts), max(starts, default=0), had)
        alone = [(row, text) for row, text in enumerate(places, old) if text not in shared]
        for layer, rows, prompts in layers:
            for block, pairs in ((rows, alone), (prompts, list(enumerate(shared, had)))):
                for row, text in pairs:
                    begin = layer.keys.shape[2] - lengths[text]
                    block.write(row, layer.keys[text, :, begin:], layer.values[text, :, begin:])
        self.lengths, self.prompt_lengths = own, starts
        self.numbers += [had + shared.index(text) if text in shared else -1 for text in places]

    def reserve(self, new: int) -> None:
        """Allocate room for `new` more tokens of each row."""
        for block in self.rows:
            block.reserve(block.parts[0], len(self.lengths), max(self.lengths) + new, len(self.lengths), ROOM)

    def keep(self, rows: Sequence[int], guessed: Sequence[int]) -> None:
        """Move row `rows[i]` with `guessed[i]` draft tokens behind it to row i, and drop the prompts that no row continues."""
        self.lengths = [self.lengths[row] for row in rows]
        self.numbers = [self.numbers[row] for row in rows]
        for block in self.rows:
            block.keep(rows, [length + more for length, more in zip(self.lengths, guessed, strict=True)])
        left = sorted(set(self.numbers) - {-1})
        if len(left) < len(self.prompt_lengths):
            self.prompt_lengths = [self.prompt_lengths[number] for number in left]
            self.numbers = [left.index(number) if number >= 0 else -1 for number in self.numbers]
            for block in self.prompts:
                block.keep(left, self.prompt_lengths)

    def text(self, row: int) -> list[tuple[Tensor, Tensor]]:
        """Return keys and values `[heads, tokens, head_dim]` of each layer for all tokens of a row, its prompt included."""
        length, number = self.lengths[row], self.numbers[row]
        found = []
        for rows, prompts in zip(self.rows, self.prompts, strict=True):
            parts = [part[row, :, :length] for part in rows.parts]
            if number >= 0:
                begin = [part[number, :, : self.prompt_lengths[number]] for part in prompts.parts]
                parts = [torch.cat(both, 1) for both in zip(begin, parts, strict=True)]
            found.append((parts[0], parts[1]))
        return found

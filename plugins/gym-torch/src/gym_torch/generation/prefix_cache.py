"""Keys and values of the beginnings of prompts, kept for the next prompt that begins with the same tokens.

They are kept in blocks of `BLOCK` tokens. The key of a block is the block before it and its own tokens, so a hit has exactly the
tokens that are looked up, from the first on. The key of the first block of a text includes its scope: who may use it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK = 16  #: tokens of a block; what is kept of a prompt is a multiple of it


@dataclass(frozen=True)
class _Block:
    """Keys and values of some tokens of a text."""

    number: int
    held: Sequence[Tensor]  #: `[parts, heads, BLOCK, head_dim]`, one of each shape: a value may be narrower than a key
    places: Sequence[Sequence[int]]  #: of the parts of each, among the keys of all layers and then their values

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return sum(part.nbytes for part in self.held)


class PrefixCache:
    """Cache of beginnings of prompts, least recently used first out. A scope has to name the model as well."""

    def __init__(self, limit: int) -> None:
        """Keep at most `limit` bytes of keys and values."""
        self.limit = limit
        self.bytes = 0
        self._blocks: OrderedDict[tuple[Hashable, tuple[int, ...]], _Block] = OrderedDict()
        self._count = 0

    def length(self, scope: Hashable, prompt: Sequence[int]) -> int:
        """Return how many tokens of a prompt are cached, at most all but one, so that a pass has a token to compute."""
        return len(self._found(scope, prompt, len(prompt) - 1)) * BLOCK

    def take(self, asked: Sequence[tuple[Hashable, Sequence[int], int]]) -> list[tuple[Tensor, Tensor]]:
        """Return keys and values `[texts, heads, width, head_dim]` of each layer, aligned at the right.

        `asked` has for each text its scope, its prompt and how many of its first tokens are wanted, at most what `length`
        returns.
        """
        width = max(count for *_, count in asked)
        found = [self._found(scope, prompt, len(prompt) - 1)[: -(-count // BLOCK)] for scope, prompt, count in asked]
        parts: dict[int, Tensor] = {}
        for number, places in enumerate(next(blocks for blocks in found if blocks)[0].places):
            rows = [
                pad(torch.cat([each.held[number] for each in blocks], 2)[:, :, :count], (0, 0, width - count, 0))
                if blocks
                else None
                for blocks, (*_, count) in zip(found, asked, strict=True)
            ]
            like = next(row for row in rows if row is not None)
            whole = torch.stack([torch.zeros_like(like) if row is None else row for row in rows], 1)
            parts |= zip(places, whole, strict=True)
        layers = len(parts) // 2
        return [(parts[layer], parts[layers + layer]) for layer in range(layers)]

    def put(self, scope: Hashable, tokens: Sequence[int], held: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Keep keys and values `[heads, length, head_dim]` of each layer for the first tokens of a text."""
        parts = [pair[half] for half in range(2) for pair in held]
        length = parts[0].shape[1]
        known = self._found(scope, tokens, length)
        start, stop = len(known) * BLOCK, length - length % BLOCK
        if start >= stop or any(part.shape[1] != length for part in parts):
            return
        alike: dict[torch.Size, list[int]] = {}
        for place, part in enumerate(parts):
            alike.setdefault(part.shape, []).append(place)
        new = [torch.stack([parts[place][:, start:stop] for place in places]) for places in alike.values()]
        if sum(part.nbytes for part in new) > self.limit:
            return
        before: Hashable = known[-1].number if known else ("scope", scope)
        for at in range(0, stop - start, BLOCK):
            own = [part[:, :, at : at + BLOCK].clone() for part in new]
            block = _Block(self._count, own, list(alike.values()))
            self._count += 1
            self._blocks[before, tuple(tokens[start + at : start + at + BLOCK])] = block
            self.bytes += block.nbytes
            before = block.number
        self._found(scope, tokens, length)  # used now, the first block last of all
        while self.bytes > self.limit:
            self.bytes -= self._blocks.popitem(last=False)[1].nbytes

    def _found(self, scope: Hashable, tokens: Sequence[int], most: int) -> list[_Block]:
        """Return the cached blocks of the first `most` tokens, and mark them as used."""
        found: list[_Block] = []
        used = []
        before: Hashable = ("scope", scope)
        for at in range(0, max(most, 0) - BLOCK + 1, BLOCK):
            key = (before, tuple(tokens[at : at + BLOCK]))
            block = self._blocks.get(key)
            if block is None:
                break
            found.append(block)
            used.append(key)
            before = block.number
        for key in reversed(used):
            self._blocks.move_to_end(key)
        return found

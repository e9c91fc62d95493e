"""The cache of a batch whose rows are padded to one length, what every such cache promises, and the passes that extend it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from gym_torch.generation.drafts import Drafts
from gym_torch.generation.few_rows import FewRows
from gym_torch.generation.kv_cache import RowCache
from gym_torch.generation.passes import runner
from gym_torch.generation.row import Row
from gym_torch.generation.shared_prompts import SharedPrompts
from gym_torch.model.expert_routing import Routers

Around = Callable[[list[Hashable]], AbstractContextManager[None]]


class NextLogits(NamedTuple):
    """Logits of the next token of some rows."""

    rows: list[int]  #: which ones
    logits: Tensor  #: `[rows, vocabulary]`
    routed: Tensor | None = None  #: experts of the tokens that were run, `[rows, 1, layers, k]`


class BatchCache(Protocol):
    """Keys and values of the rows of a batch, and the step that extends them. Lists with an entry a row are in their order."""

    def append(self, cache: Cache, lengths: Sequence[int], places: Sequence[int]) -> None:
        """Add rows from `cache`, whose texts are aligned at the right.

        `places` has the number of the text of each row, `lengths` the number of tokens of each text.
        """
        ...

    def step(self, rows: Sequence[Row]) -> NextLogits:
        """Run the newest token of each row; return the logits of some rows. The others get theirs in a later step."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Keep the rows `rows`, in this order, and drop the others."""
        ...

    def text(self, row: int) -> list[tuple[Tensor, Tensor]]:
        """Return keys and values `[heads, tokens, head_dim]` of each layer, for all tokens of a row but its newest."""
        ...


class Passes:
    """Forward passes of a model over tokens of rows, each within the context that `around` returns for the keys of its rows."""

    def __init__(self, model: PreTrainedModel, routers: Routers | None, around: Around, alone: bool) -> None:
        """Record experts if there are routers; `alone` says that `around` does nothing."""
        self.model, self.routers, self.around = model, routers, around
        self.few_rows = FewRows(model)
        self._run = runner(model, routers, alone)

    def run(
        self,
        keys: list[Hashable],
        tokens: Tensor,
        lengths: list[int],
        cache: Cache,
        shared: SharedPrompts | None = None,
        keep: int = 1,
    ) -> tuple[Tensor, Tensor | None]:
        """Run tokens `[rows, new]` as `gym_torch.generation.passes.run_tokens` does."""
        with self.around(keys), self.few_rows:
            return self._run(tokens, lengths, cache, shared, keep)


class PaddedRows:
    """Rows padded on the left to one length: for every model whose cache rows do not depend on each other."""

    def __init__(self, passes: Passes, shared: SharedPrompts | None, guesses: int) -> None:
        """Begin without rows; a single row gets up to `guesses` draft tokens a step."""
        self._passes, self._shared, self._guesses = passes, shared, guesses
        self._lengths: list[int] = []  # tokens in the cache
        self._cache = RowCache()
        self._drafts: Drafts | None = None  # of the row that is alone

    def append(self, cache: Cache, lengths: Sequence[int], places: Sequence[int]) -> None:
        """Add rows, as `BatchCache.append` does."""
        self._forget_drafts()
        self._cache.reserve(cache, len(places), 0 if self._shared else cache.get_seq_length())
        if self._shared:
            self._shared.take(cache, lengths, places)
        self._cache.append(cache, torch.tensor(places, device=self._passes.model.device))
        self._lengths += [0 if self._shared else lengths[place] for place in places]

    def step(self, rows: Sequence[Row]) -> NextLogits:
        """Run the newest token of each row."""
        self._lengths = [length + 1 for length in self._lengths]
        if len(rows) == 1 and self._passes.routers is None and self._shared is None:
            return NextLogits([0], self._alone(rows[0]))
        last = [[row.completion.tokens[-1]] for row in rows]
        tokens = torch.tensor(last, device=self._passes.model.device)
        keys = [row.key for row in rows]
        return NextLogits(
            list(range(len(rows))), *self._passes.run(keys, tokens, self._lengths, self._cache, self._shared)
        )

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows, and the columns that any of them uses."""
        self._forget_drafts()
        self._lengths = [self._lengths[row] for row in rows]
        self._cache.keep(rows, max(self._lengths, default=0))
        if self._shared:
            self._shared.keep(rows)

    def text(self, row: int) -> list[tuple[Tensor, Tensor]]:
        """Return keys and values of a row, as `BatchCache.text` does."""
        stop = self._cache.get_seq_length() - (len(self._drafts.tokens) if self._drafts else 0)
        own = slice(stop - self._lengths[row], stop)
        return [(layer.keys[row, :, own], layer.values[row, :, own]) for layer in self._cache.layers]

    def _alone(self, row: Row) -> Tensor:
        """Run the newest token of the only row and draft tokens behind it; return the logits `[1, vocabulary]` after it."""
        drafts = self._drafts = self._drafts or Drafts(self._guesses)
        text = [*row.prompt, *row.completion.tokens]
        known = drafts.follows(text[-1])
        if known is not None:
            return known
        self._cache.take_back(drafts.forget())
        guessed = drafts.guess(text, row.limit - len(row.completion.tokens) - 1)
        tokens = torch.tensor([[text[-1], *guessed]], device=self._passes.model.device)
        lengths = [self._lengths[0] + len(guessed)]
        logits, _ = self._passes.run([row.key], tokens, lengths, self._cache, keep=len(guessed) + 1)
        drafts.tokens, drafts.logits = guessed, list(logits[1:, None])
        return logits[:1]

    def _forget_drafts(self) -> None:
        """Remove draft tokens from the cache, since another row may be the only one from now on."""
        if self._drafts:
            self._cache.take_back(self._drafts.forget())
        self._drafts = None

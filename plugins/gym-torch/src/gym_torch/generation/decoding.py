"""Continuous batching: rows enter between two steps, a step adds a token to each, and rows leave as they end or are dropped.

The one decoding loop. `gym_torch.generation.generator` drives it over a list of prompts, a server over requests as they come.
Identical prompts that enter together are computed once, and the beginning of a prompt not at all where a cache has it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from gym_core import GymError
from gym_torch.generation.cache_support import CacheSupport
from gym_torch.generation.drafts import MOST
from gym_torch.generation.kv_cache import fill
from gym_torch.generation.padded_rows import Around, BatchCache, PaddedRows, Passes
from gym_torch.generation.prefill import MIN_COMMON, ChunkedPrefill, common_beginnings, prefill_batches
from gym_torch.generation.prefix_cache import PrefixCache
from gym_torch.generation.ragged_rows import RaggedRows, kernel_for
from gym_torch.generation.row import Row, Text, extend
from gym_torch.generation.shared_prompts import SharedPrompts
from gym_torch.generation.uncached import next_logits
from gym_torch.model.expert_routing import Routers
from gym_torch.model.layout_support import miniature_support
from gym_torch.model.log_probs import head_of


class Decoding:
    """The rows of a batch that is decoded. Every list with one entry a row is in the order of `rows`."""

    def __init__(
        self,
        model: PreTrainedModel,
        support: CacheSupport,
        longest: int,
        routers: Routers | None = None,
        around: Around | None = None,
        shared: SharedPrompts | None = None,
        prefixes: PrefixCache | None = None,
        guesses: int = MOST,
    ) -> None:
        """Begin without rows.

        Args:
            model: in evaluation mode while rows are decoded.
            support: how it can be decoded.
            longest: most tokens of a prompt with its completion.
            routers: those of the model, where the experts of every token are to be recorded.
            around: returns the context of a forward pass, given the keys of its rows.
            shared: keeps a prompt that several rows continue once; not together with `prefixes`.
            prefixes: cache of beginnings of prompts; rows that have a scope are added to it.
            guesses: most draft tokens of a row in one step.

        """
        self.model = model
        self.rows: list[Row] = []
        self._routers = routers
        self._prefixes = prefixes if support.cached and routers is None else None
        self._around = around or (lambda keys: nullcontext())
        self._one_by_one = around is not None
        self._passes = Passes(model, routers, self._around, alone=around is None)
        attend = kernel_for(model, support)
        self._kept: BatchCache = (
            RaggedRows(self._passes, attend, guesses) if attend else PaddedRows(self._passes, shared, guesses)
        )
        self._uncached = None if support.cached else self._without_cache(longest)

    @torch.no_grad()
    def admit(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Run the prompts of new rows, each distinct one once, and choose a token for each; return them in any order."""
        if self._uncached:
            self.rows += rows
            return self._chosen(self._whole(rows))
        self._compute_common([row.text for row in rows])
        return self._chosen(
            torch.cat([self._enter(part) for part in prefill_batches(rows, self._left, self.model.device.type)])
        )

    @torch.no_grad()
    def begin(self, rows: Sequence[Row]) -> ChunkedPrefill:
        """Begin the prefill of rows with the same prompt, from what the prefix cache has of it; nothing is computed yet."""
        done = len(rows[0].prompt) - self._left(rows)
        cache = self._beginnings([rows[0].text], done, len(rows[0].prompt) - done)
        return ChunkedPrefill(rows, cache, done)

    @torch.no_grad()
    def advance(self, begun: ChunkedPrefill, count: int) -> None:
        """Compute `count` more tokens of a prompt, fewer than are left; the rows of the batch stay as they are."""
        key, _, text = begun.rows[0].text
        tokens = torch.tensor([text[begun.done : begun.done + count]], device=self.model.device)
        self._passes.run([key], tokens, [begun.done + count], begun.cache)
        begun.done += count

    @torch.no_grad()
    def finish(self, begun: ChunkedPrefill) -> Sequence[Row]:
        """Compute the rest of a prompt, add its rows, and choose a token for each."""
        return self._chosen(self._enter(begun.rows, begun))

    @torch.no_grad()
    def step(self) -> Sequence[Row]:
        """Choose a token for every row, or for some of them; return those. Rows that it ends have left the batch."""
        if self._uncached:
            return self._chosen(self._whole(self.rows))
        places, logits, routed = self._kept.step(self.rows)
        for place, experts in zip(places, () if routed is None else routed, strict=False):
            self.rows[place].completion.routed.append(experts)
        return self._chosen(logits, places)

    def drop(self, rows: Collection[Row]) -> None:
        """Remove rows from the batch and free their memory; rows that left already are ignored."""
        gone = set(map(id, rows))
        self._keep([at for at, row in enumerate(self.rows) if id(row) not in gone])

    def _chosen(self, logits: Tensor, places: Sequence[int] | None = None) -> list[Row]:
        """Choose a token for the rows at `places`, by default the last, from logits `[rows, vocabulary]`; drop ended rows."""
        count = len(self.rows)
        places = range(count - len(logits), count) if places is None else places
        rows = [self.rows[place] for place in places]
        over = {place for place, goes in zip(places, extend(rows, logits), strict=True) if not goes}
        self._keep([place for place in range(count) if place not in over])
        return rows

    def _keep(self, rows: list[int]) -> None:
        """Keep the rows at these places, and drop the others with the memory that only they used."""
        if len(rows) == len(self.rows):
            return
        for at in set(range(len(self.rows))) - set(rows):
            self._remember(at, [*self.rows[at].prompt, *self.rows[at].completion.tokens])
        order = fill(rows)
        self.rows = [self.rows[row] for row in order]
        if not self._uncached:
            self._kept.keep(order)

    def _remember(self, at: int, tokens: Sequence[int]) -> None:
        """Put keys and values of a row, whose text is `tokens`, into the prefix cache."""
        if self._prefixes is not None and self.rows[at].scope is not None:
            self._prefixes.put(self.rows[at].scope, tokens, self._kept.text(at))

    def _without_cache(self, longest: int) -> Callable[[Sequence[Sequence[int]]], Tensor]:
        """Return a function from texts to the logits `[texts, vocabulary]` that follow them, for a model without a cache."""
        if self._routers is not None:
            raise GymError(
                f"experts are recorded with a cache, and {type(self.model).__name__} has none that rows can share",
                key="algorithm.routing_replay",
                fix="leave `routing_replay` out",
            )
        return partial(
            next_logits, self.model, head_of(self.model), miniature_support(self.model, longest, packs=False).layout
        )

    def _whole(self, rows: Sequence[Row]) -> Tensor:
        """Return the logits `[rows, vocabulary]` that follow the whole texts of rows, computed without a cache."""
        assert self._uncached is not None
        if self._one_by_one and len(rows) > 1:  # such a model may be computed row by row
            return torch.cat([self._whole([row]) for row in rows])
        with self._around([row.key for row in rows]):
            return self._uncached([[*row.prompt, *row.completion.tokens] for row in rows])

    def _enter(self, rows: Sequence[Row], begun: ChunkedPrefill | None = None) -> Tensor:
        """Prefill prompts, each distinct one once, add the rows, and return the logits `[rows, vocabulary]` that follow."""
        numbers = {text: number for number, text in enumerate(dict.fromkeys(row.text for row in rows))}
        keys, texts = [key for key, *_ in numbers], [text for *_, text in numbers]
        width = begun.left if begun else self._left(rows)
        device = self.model.device
        tokens = torch.tensor([(0,) * (width - len(text)) + text[-width:] for text in texts], device=device)
        cache = begun.cache if begun else self._beginnings(numbers, max(map(len, texts)) - width, width)
        lengths = list(map(len, texts))
        logits, routed = self._passes.run(keys, tokens, lengths, cache)
        if routed is not None:
            own = [experts[width - len(text) :].clone() for experts, text in zip(routed, texts, strict=True)]
            for row in rows:
                row.completion.routed.append(own[numbers[row.text]])
        places = [numbers[row.text] for row in rows]
        self._kept.append(cache, lengths, places)
        self.rows += rows
        first = {place: at for at, place in reversed(list(enumerate(places, len(self.rows) - len(rows))))}
        for place, at in first.items():
            self._remember(at, texts[place])
        return logits if places == list(range(len(texts))) else logits[places]

    def _compute_common(self, texts: Sequence[Text]) -> None:
        """Compute common beginnings of prompts once, and put them into the prefix cache."""
        if self._prefixes is None:
            return
        for key, scope, beginning in common_beginnings(texts):
            left = len(beginning) - self._prefixes.length(scope, beginning)
            if left > MIN_COMMON:
                cache = self._beginnings([(key, scope, beginning)], len(beginning) - left, left)
                tokens = torch.tensor([beginning[-left:]], device=self.model.device)
                self._passes.run([key], tokens, [len(beginning)], cache)
                self._prefixes.put(scope, beginning, [(layer.keys[0], layer.values[0]) for layer in cache.layers])

    def _left(self, rows: Sequence[Row]) -> int:
        """Return how many last tokens of each prompt to compute: as many for all, so that no cached row has a gap."""
        found = 0
        for row in rows:
            had = self._prefixes.length(row.scope, row.prompt) if self._prefixes is not None else 0
            found = max(found, len(row.prompt) - had)
        for row in rows:
            row.reused = max(len(row.prompt) - found, 0)
        return found

    def _beginnings(self, texts: Iterable[Text], most: int, width: int) -> DynamicCache:
        """Return cached keys and values of all but the last `width` tokens of each text, at most `most`, aligned at the right."""
        cache = DynamicCache()
        if most:
            assert self._prefixes is not None
            asked = [(scope, prompt, max(len(prompt) - width, 0)) for _, scope, prompt in texts]
            for layer, (keys, values) in enumerate(self._prefixes.take(asked)):
                cache.update(keys, values, layer)
        return cache

"""The cache of a batch without padding: a pass has the new tokens of all rows, each as a row of one token.

Attention is computed by a kernel (`gym_torch.attention.cached_attention`), which appends new keys and values, reads the tokens of
each row, and reads a prompt that several rows continue once for all of them. Rows may therefore have different numbers of draft
tokens in one pass.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from gym_torch.attention import cached_attention
from gym_torch.attention.cached_attention import CachedAttention, places_of
from gym_torch.attention.segment_attention import NAME, NO_MASK
from gym_torch.generation.cache_support import CacheSupport
from gym_torch.generation.drafts import Drafts, most_guesses
from gym_torch.generation.padded_rows import NextLogits, Passes
from gym_torch.generation.ragged_cache import RaggedCache
from gym_torch.generation.row import Row
from gym_torch.kernels.kernel_functions import Kept, Places, Scores
from gym_torch.model.head_dim import head_dim

_TURN = threading.Lock()
_ATTENDING: dict[int, tuple[int, str]] = {}  #: by configuration, passes under way and how it says to attend otherwise


def precision(model: PreTrainedModel) -> torch.dtype:
    """Return the dtype in which a model on a CPU computes attention."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else model.dtype


def kernel_for(model: PreTrainedModel, support: CacheSupport) -> CachedAttention | None:
    """Return the kernel for rows without padding; None where a model needs padded rows."""
    if not support.ragged or model.device.type != "cpu":
        return None
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return cached_attention.chosen(heads, kv_heads, head_dim(config), precision(model))


class RaggedRows:
    """Keys and values of rows without padding, and their draft tokens."""

    def __init__(self, passes: Passes, attend: CachedAttention, guesses: int) -> None:
        """Begin without rows."""
        self._passes, self._attend, self._guesses = passes, attend, guesses
        self._cache = RaggedCache(precision(passes.model))
        self._drafts: list[Drafts] = []

    def append(self, cache: Cache, lengths: Sequence[int], places: Sequence[int]) -> None:
        """Add rows, as `BatchCache.append` does."""
        self._cache.append(cache, lengths, places)
        self._drafts += [Drafts(self._guesses) for _ in places]

    def step(self, rows: Sequence[Row]) -> NextLogits:
        """Return the logits of rows whose newest token was guessed; if there are none, run the newest tokens with new guesses."""
        known: dict[int, Tensor] = {}
        for at, (row, drafts) in enumerate(zip(rows, self._drafts, strict=True)):
            logits = drafts.follows(row.completion.tokens[-1])
            if logits is not None:
                known[at] = logits
        if known:
            for at in known:
                self._cache.lengths[at] += 1
            return NextLogits(list(known), torch.cat(list(known.values())))
        most = most_guesses(len(rows), self._guesses) if self._passes.routers is None else 0
        new = [self._new(row, drafts, most) for row, drafts in zip(rows, self._drafts, strict=True)]
        logits, routed = self._run(rows, new)
        first = [0]
        for tokens in new:
            first.append(first[-1] + len(tokens))
        for at, tokens in enumerate(new):
            self._cache.lengths[at] += 1
            self._drafts[at].tokens = tokens[1:]
            self._drafts[at].logits = list(logits[first[at] + 1 : first[at + 1], None])
        followed = logits if len(logits) == len(rows) else logits[first[:-1]]
        return NextLogits(list(range(len(rows))), followed, routed)

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows."""
        self._drafts = [self._drafts[row] for row in rows]
        self._cache.keep(rows, [len(drafts.tokens) for drafts in self._drafts])

    def text(self, row: int) -> list[tuple[Tensor, Tensor]]:
        """Return keys and values of a row, as `BatchCache.text` does."""
        return self._cache.text(row)

    def _new(self, row: Row, drafts: Drafts, most: int) -> list[int]:
        """Return the newest token of a row, and draft tokens behind it."""
        made = row.completion.tokens
        drafts.forget()
        most = min(most, row.limit - len(made) - 1)
        if len(self._drafts) > 1 and drafts.rests():  # beside others, what is guessed wrongly takes time
            most = 0
        return [made[-1], *(drafts.guess([*row.prompt, *made], most) if most > 0 else ())]

    def _run(self, rows: Sequence[Row], new: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None]:
        """Run new tokens of each row, each as a row of its own; return logits `[tokens, vocabulary]`, and their experts."""
        cache, passes = self._cache, self._passes
        counts = list(map(len, new))
        cache.reserve(max(counts))
        places = places_of(counts, cache.lengths, cache.numbers, cache.prompt_lengths)
        before = [
            length + (cache.prompt_lengths[number] if number >= 0 else 0)
            for length, number in zip(cache.lengths, cache.numbers, strict=True)
        ]
        run = partial(
            passes.model,
            input_ids=torch.tensor([token for tokens in new for token in tokens])[:, None],
            attention_mask=NO_MASK,
            position_ids=torch.tensor([at + n for at, count in zip(before, counts, strict=True) for n in range(count)])[
                :, None
            ],
            past_key_values=cache.passing,
            use_cache=True,
            logits_to_keep=1,
            cached=partial(self._attended, places),
        )
        keys = [row.key for row, count in zip(rows, counts, strict=True) for _ in range(count)]
        with passes.around(keys), passes.few_rows, attending(passes.model):
            if passes.routers is None:
                return run().logits[:, -1], None
            output, routed = passes.routers.record(run)
        return output.logits[:, -1], routed[:, None].cpu()

    def _attended(self, places: Places, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Scores) -> Tensor:
        (keys, values), (starts, contents) = self._cache.rows[layer].parts, self._cache.prompts[layer].parts
        query, key, value = (part.to(keys.dtype) for part in (query, key, value))  # as autocast does
        return self._attend(query, key, value, Kept(keys, values, starts, contents, places), rule)


@contextmanager
def attending(model: PreTrainedModel) -> Iterator[None]:
    """Have a model use `gym_torch.attention.segment_attention` in the block, in place of the sdpa that computes the same."""
    config = model.config
    with _TURN:  # several threads may decode with one model
        passes, before = _ATTENDING.get(id(config), (0, config._attn_implementation))
        _ATTENDING[id(config)] = passes + 1, before
        config._attn_implementation = NAME
    try:
        yield
    finally:
        with _TURN:
            passes, before = _ATTENDING.pop(id(config))
            if passes > 1:
                _ATTENDING[id(config)] = passes - 1, before
            else:
                config._attn_implementation = before

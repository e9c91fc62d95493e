"""How the samples of a step become batches: packed into full rows, or side by side with padding.

Packing is what a run does; padding is what it falls back to where a model attends in a way of its own. Neither
changes what is learnt.
"""

from __future__ import annotations

import inspect
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gym_core import Train
from gym_torch.attention import NAME, NO_MASK
from gym_torch.batch import Batch, Example, Piece, packed, padded

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """Two decisions that belong together."""

    name: str
    lay_out: Callable[[Sequence[Example], Sequence[int | None]], Batch]
    """Makes one batch of examples; the second argument names their prefixes, see `gym_torch.batch.packed`."""
    cut: Callable[[Ints, Train], list[Ints]]
    """Deals the samples of a step, given by their lengths, out to batches; the heaviest batch comes first."""


def fill(lengths: Ints, train: Train) -> list[Ints]:
    """Fill rows of `batch_tokens` tokens, or rows of `batch_size` samples that weigh about the same.

    A sample longer than `batch_tokens` gets a row of its own. Best fit, the longest first: at most 11/9 of the fewest
    rows possible, and one more (Johnson 1973).
    """
    ranked = [int(index) for index in np.argsort(-lengths, kind="stable")]
    budget = train.batch_tokens
    rows = _by_tokens(ranked, lengths, budget) if isinstance(budget, int) else _by_count(ranked, lengths, train)
    heaviest_first = sorted(rows, key=lambda row: -int(lengths[row].sum()))
    return [np.array(sorted(row), dtype=np.int64) for row in heaviest_first]


def bucket(lengths: Ints, train: Train) -> list[Ints]:
    """Put samples of like lengths together: `batch_size` of them, or as many as fit into `batch_tokens` with padding."""
    ranked = np.argsort(-lengths, kind="stable")
    batches, start = [], 0
    while start < len(ranked):
        longest = int(lengths[ranked[start]])
        rows = max(1, train.batch_tokens // longest) if isinstance(train.batch_tokens, int) else train.batch_size
        batches.append(ranked[start : start + rows])
        start += rows
    return batches


PACKED = Layout("packed", packed, fill)
PADDED = Layout("padded", padded, bucket)


@torch.no_grad()
def layout_for(model: PreTrainedModel) -> Layout:
    """Return PACKED, with the model set to attend by segments, where that gives what the model gives by itself.

    Compares hidden states on three short segments, one of which continues another. A model with layers that mix
    tokens in other ways than attention keeps its own attention, and its samples are padded.
    """
    options = inspect.signature(model.base_model.forward).parameters.values()
    if not any(option.kind is option.VAR_KEYWORD for option in options):
        return PADDED
    tokens = np.arange(1, 22, dtype=np.int32) % model.config.get_text_config().vocab_size
    probe = [Piece("probe", part, np.ones(len(part), dtype=np.bool_)) for part in np.split(tokens, (9, 14))]
    own, training = model.config._attn_implementation, model.training
    model.eval()
    expected = hidden_states(model, padded(probe, (None, None, 0)).to(model.device))
    model.set_attn_implementation(NAME)
    found = hidden_states(model, packed(probe, (None, None, 0)).to(model.device))
    model.train(training)
    rounding = 1e-4 if model.dtype == torch.float32 else 5e-2
    if torch.allclose(found, expected, rtol=0, atol=rounding * float(expected.abs().max())):
        return PACKED
    model.set_attn_implementation(own)
    return PADDED


def hidden_states(model: PreTrainedModel, batch: Batch, places: Tensor | None = None) -> Tensor:
    """Return the last hidden states `[n, dim]` at flat `places` `[n]`, by default those that predict `batch.targets`."""
    extra: dict[str, Any] = {} if batch.spans is None else {"spans": batch.spans, "attention_mask": NO_MASK}
    if batch.experts is not None:
        extra["experts"] = batch.experts
    states = model.base_model(input_ids=batch.tokens, position_ids=batch.positions, use_cache=False, **extra)
    chosen = batch.target_index if places is None else places
    return cast(Tensor, states.last_hidden_state.flatten(0, 1)[chosen])


def _by_tokens(ranked: Sequence[int], lengths: Ints, capacity: int) -> list[list[int]]:
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # tokens that still fit and the row they fit into, ascending
    for sample in ranked:
        size = int(lengths[sample])
        at = bisect_left(room, (size, -1))
        free, row = room.pop(at) if at < len(room) else (capacity, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(sample)
        insort(room, (free - size, row))
    return rows


def _by_count(ranked: Sequence[int], lengths: Ints, train: Train) -> list[list[int]]:
    rows: list[list[int]] = [[] for _ in range(ceil(len(ranked) / train.batch_size))]
    lightest = [(0, row) for row in range(len(rows))]  # a heap of the rows that take more, by their tokens
    for sample in ranked:
        weight, row = heappop(lightest)
        rows[row].append(sample)
        if len(rows[row]) < train.batch_size:
            heappush(lightest, (weight + int(lengths[sample]), row))
    return rows

"""Log-likelihoods of continuations: what texts begin with alike, such as a question or its examples, is computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gym_torch.batch import Batch, Piece
from gym_torch.model.hidden_states import hidden_states
from gym_torch.model.log_probs import Head, label_statistics, rows_at_once
from gym_torch.packing import PACKED, Layout
from gym_torch.shared_prefixes import SHARED

Tokens = tuple[int, ...]
Told = Callable[
    [int, int], None
]  #: is given how many continuations are new, and how many tokens were computed for them


class Continuation(NamedTuple):
    """A text that is given, and how it goes on."""

    context: Sequence[int]  #: tokens, at least one
    continuation: Sequence[int]  #: tokens, at least one


class LogLikelihood(NamedTuple):
    """How likely a continuation is."""

    log_prob: float  #: sum over its tokens, in nats
    greedy: bool  #: whether each of them is the likeliest token


def log_likelihoods(
    model: PreTrainedModel,
    asked: Sequence[Continuation],
    longest: int,
    *,
    head: Head,
    layout: Layout,
    batch_tokens: int,
    around: Callable[[Batch], AbstractContextManager[None]],
    told: Told,
) -> list[LogLikelihood]:
    """Return how likely each continuation is.

    Args:
        model: a causal language model, in evaluation mode.
        asked: what is scored.
        longest: most tokens that the model is given; what is before them is left out.
        head: that of the model.
        layout: one that the model computes exactly.
        batch_tokens: tokens of a pass, about; what is shared counts once.
        around: what a pass is within.
        told: learns of progress.

    """
    found: list[LogLikelihood | None] = [None] * len(asked)
    inputs: dict[Tokens, list[int]] = {}  # what the model is given, and the continuations that are read off it
    for number, (context, continuation) in enumerate(asked):
        whole = (*context, *continuation)
        inputs.setdefault(whole[-(longest + 1) :][:-1], []).append(number)
    sharing = layout is PACKED
    chunk = rows_at_once(model.config.get_text_config().vocab_size)
    for texts, size in batches(list(inputs), batch_tokens, sharing):
        ends = [[*_ends(inputs[text], asked)] for text in texts]
        pieces = [_piece(text, -min(end)) for text, end in zip(texts, ends, strict=True)]
        batch = (SHARED if sharing else layout).lay_out(pieces, ()).to(model.device)
        numbers = [number for text in texts for number in inputs[text]]
        labels = [list(asked[number].continuation) for number in numbers]
        places = batch.places(ends)
        targets = torch.tensor([token for own in labels for token in own], device=model.device)
        with torch.no_grad():
            states = hidden_states(model, batch, places, around)
            said = label_statistics(states, head, targets, _likeliest, chunk).double().cpu()
        start = 0
        for number, own in zip(numbers, labels, strict=True):
            log_probs, likeliest = said[:, start : start + len(own)]
            found[number] = LogLikelihood(float(log_probs.sum()), bool(likeliest.all()))
            start += len(own)
        told(len(numbers), size)
    return [each for each in found if each is not None]


def _piece(text: Tokens, read: int) -> Piece:
    """Return a text of which the states of the last tokens are read: these are no part of what is shared."""
    return Piece("text", np.array(text, dtype=np.int32), np.arange(len(text)) >= len(text) - read)


def _ends(numbers: Sequence[int], asked: Sequence[Continuation]) -> Iterator[int]:
    """Yield the places of the states that predict some continuations of one text, from its end."""
    for number in numbers:
        yield from range(-len(asked[number].continuation), 0)


def _likeliest(logits: Tensor, labels: Tensor) -> Tensor:
    """Return whether each label is the likeliest token, `[1, rows]`."""
    return (logits.argmax(-1) == labels)[None].to(logits.dtype)


def batches(texts: Sequence[Tokens], most: int, sharing: bool) -> Iterator[tuple[list[Tokens], int]]:
    """Yield texts that are computed together, and the tokens that takes: `most` at a time, but for one long text.

    Where beginnings are shared, texts that begin alike are neighbours. Else those of like lengths are, the longest first.
    """
    ordered = sorted(texts) if sharing else sorted(texts, key=lambda text: (-len(text), text))
    chosen: list[Tokens] = []
    size = 0
    for text in ordered:
        new = len(text) - (_common(chosen[-1], text) if sharing and chosen else 0)
        whole = size + new if sharing else max(len(text), len(chosen[0]) if chosen else 0) * (len(chosen) + 1)
        if chosen and whole > most:
            yield chosen, size
            chosen, whole = [], len(text)
        chosen.append(text)
        size = whole
    if chosen:
        yield chosen, size


def _common(one: Tokens, other: Tokens) -> int:
    """Return how many tokens two texts begin with alike."""
    most = min(len(one), len(other))
    apart = np.flatnonzero(np.not_equal(one[:most], other[:most]))
    return int(apart[0]) if len(apart) else most

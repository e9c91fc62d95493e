"""Batches: rows of tokens, the segments in them, and the labels to predict.

A segment is one sample (or a prompt that several share). This module lays them out in one packed row or in padded
rows; it knows nothing of losses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gym_torch.inputs_beside import Inputs, inputs_of, no_inputs
from gym_torch.segment_spans import Spans


class Example(Protocol):
    """One tokenized sample, as gym-data yields it."""

    @property
    def id(self) -> str:
        """Name of the sample in messages."""
        ...

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """Token ids, `[length]`."""
        ...

    @property
    def trained(self) -> npt.NDArray[np.bool_]:
        """Whether each token is a label, `[length]` bool."""
        ...


class Piece(NamedTuple):
    """A plain `Example`, for prompts apart from their responses, and for trials."""

    id: str
    tokens: npt.NDArray[np.int32]
    trained: npt.NDArray[np.bool_]
    model_inputs: Callable[..., Inputs] = no_inputs  #: of the sample that it is a part of, see `WithInputs`
    inputs_key: str = ""


@runtime_checkable
class Branching(Protocol):
    """A sample of several segments, its tokens one segment after another."""

    @property
    def segments(self) -> Sequence[tuple[int, int | None]]:
        """Tokens of each segment, and the index of the earlier segment that it continues."""
        ...


def apart(examples: Sequence[Example]) -> tuple[list[Example], tuple[int | None, ...]]:
    """Split `Branching` samples into segments; return them and the prefix of each, the arguments of `packed` and `padded`."""
    pieces: list[Example] = []
    prefixes: list[int | None] = []
    for example in examples:
        if not isinstance(example, Branching):
            pieces.append(example)
            prefixes.append(None)
            continue
        first, start = len(pieces), 0
        for number, (length, before) in enumerate(example.segments):
            name = f"{example.id}/{number + 1}" if number else example.id
            here = slice(start, start + length)
            pieces.append(Piece(name, example.tokens[here], example.trained[here], *inputs_of(example)))
            prefixes.append(None if before is None else first + before)
            start += length
    return pieces, tuple(prefixes)


def unbranched(sample: Example) -> Example:
    """Return the first sequence of a sample that branches, of a pair the side that was preferred; any other as it is."""
    if not isinstance(sample, Branching):
        return sample
    pieces, before = apart([sample])
    path = [next(number for number in range(len(pieces)) if number not in before)]
    while (earlier := before[path[0]]) is not None:
        path.insert(0, earlier)
    along = [pieces[number] for number in path]
    tokens, trained = np.concatenate([each.tokens for each in along]), np.concatenate([each.trained for each in along])
    return Piece(sample.id, tokens, trained, *inputs_of(sample))


@dataclass(frozen=True)
class Segment:
    """Tokens `start` to `stop` of one row."""

    row: int
    start: int
    stop: int
    id: str
    prefix: int | None = None  #: number of the segment that these tokens continue, in any row

    def __len__(self) -> int:
        """Return the number of tokens."""
        return self.stop - self.start


@dataclass(frozen=True)
class Batch:
    """Tokens and labels. A subclass may have more tensors, or mappings of tensors; `to` moves them all."""

    tokens: Tensor  #: [rows, length] int64
    positions: Tensor  #: [rows, length] int64; each segment counts from 0, or on from its prefix
    targets: Tensor  #: [n] int64, the tokens to predict, in the order of the segments
    target_index: Tensor  #: [n] int64, flat position (of rows * length) of the hidden state that predicts each target
    target_segment: Tensor  #: [n] int64, number of the segment that each target belongs to
    segments: tuple[Segment, ...]
    shared: int = 0
    """Segments in front that the layout made of what several begin with, see `gym_torch.shared_prefixes`."""
    spans: Spans | None = None  #: where the segments of a packed row lie; None where each row is one sample
    nucleus: Tensor | None = None
    """[m, 2] int64, of each target's set of tokens, see `gym_torch.model.log_probs.nucleus_log_probs`."""
    experts: Tensor | None = None
    """[rows, length, layers, k] int16, where each token is routed to; see `gym_torch.model.expert_routing`."""
    apart: bool = False  #: whether each row is computed by itself, without its padding
    inputs: tuple[Mapping[str, Tensor], ...] = ()
    """Of each row what the model is given beside tokens, by the names of its `forward`; empty where it is nothing of any."""

    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return the batch with every tensor changed, those in mappings too."""
        changed: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                changed[field.name] = change(value)
            elif isinstance(value, Mapping):
                changed[field.name] = {key: change(tensor) for key, tensor in value.items()}
        inputs = tuple({key: change(tensor) for key, tensor in row.items()} for row in self.inputs)
        return replace(self, **changed, inputs=inputs)

    def to(self, device: torch.device) -> Self:
        """Return the batch with all tensors on `device`."""
        return self.each(lambda tensor: tensor.to(device, non_blocking=True))

    @property
    def size(self) -> int:
        """Tokens that belong to a segment, so padding is not counted."""
        return sum(len(segment) for segment in self.segments)

    @property
    def ends(self) -> Tensor:
        """Flat position (of rows * length) of the last token of each segment that was laid out, `[segments]` int64."""
        return self.places([[-1]] * (len(self.segments) - self.shared))

    def places(self, offsets: Sequence[Sequence[int]]) -> Tensor:
        """Return the flat positions (of rows * length) of some tokens of each segment that was laid out, `[n]` int64.

        They are counted from its end, where -1 is its last token: what it begins with may be a segment of its own.
        """
        width = self.tokens.shape[1]
        flat = [
            segment.row * width + segment.stop + offset
            for segment, own in zip(self.segments[self.shared :], offsets, strict=True)
            for offset in own
        ]
        return torch.tensor(flat, dtype=torch.long, device=self.tokens.device)

    def rows(self) -> Iterator[Batch]:
        """Yield each row of a padded batch as a batch of its own, without padding and without labels."""
        for row in range(len(self.tokens)):
            leaf = max(
                (number for number, each in enumerate(self.segments) if each.row == row),
                key=lambda number: self.segments[number].stop,
            )
            lineage = [leaf]
            while (before := self.segments[lineage[0]].prefix) is not None:
                lineage.insert(0, before)
            length, none = self.segments[leaf].stop, self.targets[:0]
            yield Batch(
                tokens=self.tokens[row : row + 1, :length],
                positions=self.positions[row : row + 1, :length],
                targets=none,
                target_index=none,
                target_segment=none,
                segments=tuple(
                    replace(self.segments[number], row=0, prefix=at - 1 if at else None)
                    for at, number in enumerate(lineage)
                ),
                experts=None if self.experts is None else self.experts[row : row + 1, :length],
                inputs=self.inputs[row : row + 1],
            )

    @property
    def ids(self) -> list[str]:
        """Names of the samples."""
        return [segment.id for segment in self.segments[self.shared :]]


def packed(examples: Sequence[Example], prefixes: Sequence[int | None] = ()) -> Batch:
    """Lay out all examples one after another in a single row, each a segment of its own.

    Args:
        examples: what to lay out, at least one.
        prefixes: for each example the number of an earlier one that it continues, or None: several responses then
            share a prompt that is computed once. The first token of a continuation is predicted by the last of its
            prefix.

    """
    spans = Spans([len(example.tokens) for example in examples], prefixes)
    ends = np.cumsum(spans.lengths)
    segments = [
        Segment(0, int(end) - length, int(end), example.id, prefix)
        for example, end, length, prefix in zip(examples, ends, spans.lengths, spans.prefixes, strict=True)
    ]
    before = [None if segment.prefix is None else segments[segment.prefix].stop - 1 for segment in segments]
    return Batch(
        tokens=torch.from_numpy(np.concatenate([example.tokens for example in examples]).astype(np.int64))[None],
        positions=spans.positions[None],
        **_targets(examples, [segment.start for segment in segments], before),
        segments=tuple(segments),
        spans=spans,
        inputs=_inputs(examples, [example.tokens for example in examples]),
    )


def padded(examples: Sequence[Example], prefixes: Sequence[int | None] = ()) -> Batch:
    """Lay out one example a row, padded on the right to the longest; a shared prefix is repeated in every row.

    Padding needs no mask: attention is causal, so no token of a sample sees what stands to the right of it, and
    the hidden states of padding are never read.
    """
    spans = Spans([len(example.tokens) for example in examples], prefixes)
    lineages = [spans.lineage(number) for number in range(len(examples))]
    continued = set(spans.prefixes)
    leaves = [number for number in range(len(examples)) if number not in continued]
    row_of = {number: row for row, leaf in reversed(list(enumerate(leaves))) for number in lineages[leaf]}
    starts = [sum(spans.lengths[other] for other in lineage[:-1]) for lineage in lineages]
    longest = max(start + length for start, length in zip(starts, spans.lengths, strict=True))
    tokens = np.zeros((len(leaves), longest), dtype=np.int64)
    texts = [np.concatenate([examples[number].tokens for number in lineages[leaf]]) for leaf in leaves]
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
    flat = [row_of[number] * longest + start for number, start in enumerate(starts)]
    before = [None if prefix is None else start - 1 for start, prefix in zip(flat, spans.prefixes, strict=True)]
    return Batch(
        tokens=torch.from_numpy(tokens),
        positions=torch.arange(longest).expand(len(leaves), longest),
        **_targets(examples, flat, before),
        segments=tuple(
            Segment(
                row_of[number], starts[number], starts[number] + length, examples[number].id, spans.prefixes[number]
            )
            for number, length in enumerate(spans.lengths)
        ),
        inputs=_inputs([examples[leaf] for leaf in leaves], texts),
    )


def _inputs(leaves: Sequence[Example], texts: Sequence[npt.NDArray[np.int32]]) -> tuple[Mapping[str, Tensor], ...]:
    """Return what the model is given beside the tokens of each text, which ends with one of the leaves; nothing of text alone."""
    given = [inputs_of(leaf)[0](text) for leaf, text in zip(leaves, texts, strict=True)]
    if not any(given):
        return ()
    return tuple({name: torch.from_numpy(value) for name, value in each.items()} for each in given)


def alone(examples: Sequence[Example], prefixes: Sequence[int | None] = ()) -> Batch:
    """Lay out one example a row as `padded` does; each row is computed by itself, as if there were no others."""
    return replace(padded(examples, prefixes), apart=True)


def _targets(examples: Sequence[Example], starts: Sequence[int], before: Sequence[int | None]) -> dict[str, Tensor]:
    """Return the labels and the hidden states that predict them, for examples that begin at these flat positions.

    The state of one token predicts the next; the first is predicted by the state at `before`, or by none.
    """
    targets, index, owner = [], [], []
    for number, (example, start, previous) in enumerate(zip(examples, starts, before, strict=True)):
        chosen = np.flatnonzero(example.trained)
        if previous is None:
            chosen = chosen[chosen > 0]
        targets.append(example.tokens[chosen])
        index.append(np.where(chosen > 0, chosen + start - 1, -1 if previous is None else previous))
        owner.append(np.full(len(chosen), number))
    names = ("targets", "target_index", "target_segment")
    return {
        name: torch.from_numpy(np.concatenate(parts).astype(np.int64))
        for name, parts in zip(names, (targets, index, owner), strict=True)
    }

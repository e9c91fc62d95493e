"""What a model is given: rows of tokens, the segments in them and the labels to predict.

A segment is one sample (or a prompt that several share). This module lays them out in padded rows; it knows
nothing of losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class Example(Protocol):
    """One tokenized sample, as gym-data yields it."""

    @property
    def id(self) -> str:
        """Where the sample comes from, for messages."""
        ...

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """Token ids, `[length]`."""
        ...

    @property
    def trained(self) -> npt.NDArray[np.bool_]:
        """Whether each token is one to predict and learn from, `[length]`."""
        ...


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
    """Tokens and the labels among them. Subclass it to carry more tensors; `to` moves them all."""

    tokens: Tensor  #: [rows, length] int64
    positions: Tensor  #: [rows, length] int64; each segment counts from 0, or on from its prefix
    targets: Tensor  #: [n] int64, the tokens to predict, in the order of the segments
    target_index: Tensor  #: [n] int64, flat position (of rows * length) of the hidden state that predicts each target
    target_segment: Tensor  #: [n] int64, number of the segment that each target belongs to
    segments: tuple[Segment, ...]

    def to(self, device: torch.device) -> Self:
        """Return the batch with all tensors on `device`."""
        tensors = {
            field.name: value for field in fields(self) if isinstance(value := self.__dict__[field.name], Tensor)
        }
        return replace(self, **{name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()})

    @property
    def size(self) -> int:
        """Tokens that belong to a segment, so padding is not counted."""
        return sum(len(segment) for segment in self.segments)

    @property
    def ids(self) -> list[str]:
        """Names of the samples."""
        return [segment.id for segment in self.segments]


def padded(examples: Sequence[Example]) -> Batch:
    """Lay out one example a row, padded on the right to the longest.

    Padding needs no mask: attention is causal, so no token of a sample sees what stands to the right of it, and
    the hidden states of padding are never read.
    """
    lengths = [len(example.tokens) for example in examples]
    rows, longest = len(examples), max(lengths)
    tokens = np.zeros((rows, longest), dtype=np.int64)
    targets, index, owner = [], [], []
    for row, example in enumerate(examples):
        tokens[row, : lengths[row]] = example.tokens
        before = np.flatnonzero(
            example.trained[1:]
        )  # the state of token i predicts token i + 1; nothing predicts token 0
        targets.append(example.tokens[before + 1])
        index.append(before + row * longest)
        owner.append(np.full(len(before), row))
    return Batch(
        tokens=torch.from_numpy(tokens),
        positions=torch.arange(longest).expand(rows, longest),
        targets=_int64(targets),
        target_index=_int64(index),
        target_segment=_int64(owner),
        segments=tuple(Segment(row, 0, length, examples[row].id) for row, length in enumerate(lengths)),
    )


def _int64(parts: Sequence[npt.NDArray[np.integer]]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts).astype(np.int64))

"""Runs code on tensors without data and writes down what it would allocate and compute.

`Trace` sees every operation below autograd, so the backward pass, recomputation and autocast copies are in it. It knows
neither models nor batches.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gym_plan.meta_operations import FLOPS, STAND_INS

GRAIN = 512  #: allocators hand out multiples of this many bytes; exact for CUDA

_Live = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Timeline:
    """Live bytes after each operation, what the parameters hold excepted, and the floating-point operations."""

    live: _Live  #: [operations]
    marks: tuple[tuple[str, int], ...]  #: name and number of the operation where a stretch of the work ends
    flops: int

    @property
    def peak(self) -> int:
        """Return the most bytes that were live at once."""
        return int(self.live.max())

    def last(self, name: str) -> int:
        """Return the number of the operation at which the last mark of this name was set."""
        return max(number for mark, number in self.marks if mark == name)

    def stretches(self) -> list[_Live]:
        """Return the timeline cut at its marks."""
        bounds = [0, *(number for _, number in self.marks), len(self.live)]
        return [self.live[start:end] for start, end in pairwise(bounds)]

    def extended(self, longer: Timeline, times: int) -> Timeline:
        """Return this timeline with what `longer` has in addition repeated `times` times.

        Both do the same work, `longer` on one more block of layers. An operation near either end of a stretch is the
        same one in both, and what is live there grows by the same bytes with every block; between the ends it grows
        steadily from one to the other, so that the largest value is at an end. Exact as long as the blocks are alike.
        """
        parts = []
        for mine, other in zip(self.stretches(), longer.stretches(), strict=True):
            head, tail = other[: len(mine)], other[len(other) - len(mine) :]
            # Both ends reach into the repeated blocks; halfway between is inside them, whatever is before and behind.
            half = (_alike(mine, head) + len(mine) - _alike(mine[::-1], tail[::-1])) // 2
            parts += [mine[:half] + times * (head - mine)[:half], mine[half:] + times * (tail - mine)[half:]]
        return Timeline(np.concatenate(parts), self.marks, self.flops + times * (longer.flops - self.flops))


@dataclass
class Trace(TorchDispatchMode):
    """While entered, keeps account of every storage that operations create and of when it goes."""

    held: dict[int, Any] = field(default_factory=dict)  #: storages that live, by address
    live: int = 0
    times: list[int] = field(default_factory=list)
    marks: list[tuple[str, int]] = field(default_factory=list)
    flops: int = 0

    def __post_init__(self) -> None:
        """Set up the mode, for a dataclass does not."""
        super().__init__()

    def ignore(self, tensors: Iterable[Tensor]) -> None:
        """Do not count these tensors, and nothing that shares their memory."""
        self.held |= {tensor.untyped_storage()._cdata: None for tensor in tensors}

    def mark(self, name: str) -> None:
        """End a stretch of the work."""
        self.marks.append((name, len(self.times)))

    def timeline(self) -> Timeline:
        """Return what was seen."""
        return Timeline(np.array(self.times, dtype=np.int64), tuple(self.marks), self.flops)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and account for what it returns."""
        kwargs = kwargs or {}
        out = STAND_INS.get(func, func)(*args, **kwargs)
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._hold(leaf.untyped_storage())
        count = FLOPS.get(func.overloadpacket)
        if count:
            self.flops += count(*args, **kwargs, out_val=out)
        self.times.append(self.live)
        return out

    def _hold(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self.held:
            return
        size = -(-storage.nbytes() // GRAIN) * GRAIN
        self.live += size

        def gone(_: Any) -> None:
            self.live -= size
            del self.held[key]

        self.held[key] = weakref.ref(storage, gone)


def _alike(one: _Live, two: _Live) -> int:
    """Return at how many places from the start on two timelines of one length change by the same bytes."""
    unlike = np.flatnonzero(np.diff(one) != np.diff(two))
    return int(unlike[0]) + 1 if len(unlike) else len(one)

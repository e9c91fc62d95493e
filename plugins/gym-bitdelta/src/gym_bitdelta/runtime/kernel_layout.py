"""A delta as kernels read it: one tensor of 32-bit words, and records of numbers that say where each matrix lies in it.

How the signs themselves lie is the kernel's (`gym_bitdelta.runtime.products.Products.arrange`); everything else is here. One
tensor a tenant means one allocation to count, to move to a device and to let go of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float32]
Arrange = Callable[[NDArray[np.uint8], int], NDArray[np.int32]]
"""Takes signs `[planes, rows, bytes]` as they lie in a file, and the number of columns; returns words, flat."""

LANES = 16  #: outputs of a tile: what a register of 512 bits holds of fp32
WORD = 32  #: inputs whose signs stand in a word
ALIGNED = 16  #: words: each array begins with a cache line


class Field(IntEnum):
    """Numbers of a record, in the order that `planes.c` has; it says what they mean."""

    PLANES = 0
    IN = 1
    OUT = 2
    SIGNS = 3
    FACTOR = 4
    SCALE = 5
    SCALES = 6
    GROUP = 7
    COLUMN = 8
    COLUMNS = 9
    BAND = 10
    OFFSET = 11
    BIAS = 12
    INDEX = 13
    LEADING = 14


NOTHING = tuple(-1 if f in (Field.COLUMN, Field.OFFSET, Field.BIAS, Field.INDEX) else 0 for f in Field)


def empty(group: int = 1) -> NDArray[np.int64]:
    """Return a record without planes."""
    record = np.array(NOTHING, dtype=np.int64)
    record[Field.GROUP] = group
    return record


@dataclass(frozen=True)
class Matrix:
    """A matrix `[rows, columns]` of signs and scales: `sum_p outer[p] * inner[p] * sign[p] + offset * inner[0]`."""

    bits: NDArray[np.uint8]  #: `[planes, rows, ceil(columns / 8)]`, as `gym_bitdelta.delta.packing` has them
    columns: int
    outer: Floats  #: `[planes, rows or 1, groups]`
    inner: Floats | None = None  #: `[planes or 1, bands, columns]`
    group: int = 0  #: columns of a group; 0: one group
    band: int = 0  #: rows that share an `inner`; 0: all
    offset: Floats | None = None  #: `[rows or 1, groups]`

    @property
    def fits(self) -> bool:
        """Whether kernels can read it: groups end with words, and bands with tiles."""
        several = self.outer.shape[-1] > 1
        return (not several or self.group % WORD == 0) and self.band % LANES == 0


class Writer:
    """Lays matrices out, one behind the other."""

    def __init__(self, arrange: Arrange) -> None:
        """Use the layout of signs of a kernel."""
        self._arrange = arrange
        self._arrays: list[NDArray[np.int32]] = []
        self._size = 0

    def words(self) -> Tensor:
        """Return all of it, int32 `[words]`."""
        return torch.from_numpy(np.concatenate(self._arrays)) if self._arrays else torch.zeros(0, dtype=torch.int32)

    def add(self, array: NDArray[np.float32] | NDArray[np.int32]) -> int:
        """Append an array and return where it begins, in words."""
        begin, flat = self._size, np.ascontiguousarray(array).reshape(-1).view(np.int32)
        self._arrays += [flat, np.zeros(-flat.size % ALIGNED, dtype=np.int32)]
        self._size += flat.size + -flat.size % ALIGNED
        return begin

    def bias(self, record: NDArray[np.int64], bias: Floats) -> None:
        """Let the product with a record add a bias `[rows]` too."""
        record[Field.BIAS] = self.add(padded(bias, LANES))

    def matrix(self, matrix: Matrix, index: NDArray[np.int32] | None = None, leading: int = 0) -> NDArray[np.int64]:
        """Append a matrix that `fits`, and return its record.

        Args:
            matrix: what to append.
            index: which output each of its rows is; by default row o is output o.
            leading: how many of its last rows are added to the first ones.

        """
        planes, rows, _ = matrix.bits.shape
        words = -(-matrix.columns // WORD)
        groups = matrix.outer.shape[-1]
        record = empty(matrix.group // WORD if groups > 1 else max(words, 1))
        outer, factor = _shared(matrix.outer)
        record[Field.PLANES], record[Field.IN], record[Field.OUT] = planes, matrix.columns, rows
        record[Field.SIGNS] = self.add(self._arrange(matrix.bits, matrix.columns))
        record[Field.FACTOR] = self.add(factor)
        record[Field.SCALE], record[Field.SCALES] = self.add(_tiled(outer, rows)), len(outer)
        record[Field.LEADING] = leading
        if matrix.inner is not None:
            record[Field.COLUMN] = self.add(padded(matrix.inner, WORD))
            record[Field.COLUMNS] = len(matrix.inner)
            record[Field.BAND] = matrix.band // LANES
        if matrix.offset is not None:
            record[Field.OFFSET] = self.add(_tiled(matrix.offset[None], rows))
        if index is not None:
            record[Field.INDEX] = self.add(index)
        return record


def padded(array: Floats, multiple: int) -> Floats:
    """Return an array whose last dimension is filled up with zeros to a multiple."""
    more = -array.shape[-1] % multiple
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, more)]) if more else array


def _shared(outer: Floats) -> tuple[Floats, Floats]:
    """Return scales and factors `[planes]`: one set of scales where the planes differ by a factor, as those of a grid do."""
    ones = np.ones(len(outer), dtype=np.float32)
    at = np.unravel_index(np.abs(outer[0]).argmax(), outer[0].shape)
    if len(outer) == 1 or outer[0][at] == 0:
        return outer, ones
    factor = outer[(slice(None), *at)] / outer[0][at]
    return (outer[:1], factor) if np.array_equal(outer[:1] * factor[:, None, None], outer) else (outer, ones)


def _tiled(scale: Floats, rows: int) -> Floats:
    """Return scales `[n, rows or 1, groups]` as `[n, tiles, groups, LANES]`; those of rows that only fill up are zero."""
    whole = np.zeros((len(scale), -(-rows // LANES) * LANES, scale.shape[-1]), dtype=np.float32)
    whole[:, :rows] = scale
    return whole.reshape(len(scale), -1, LANES, scale.shape[-1]).swapaxes(2, 3)

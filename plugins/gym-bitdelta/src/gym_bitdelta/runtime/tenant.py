"""A tenant's delta, ready for products: packed matrices in one arena, and what is kept as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gym_bitdelta.delta import packing
from gym_bitdelta.delta.file import Delta
from gym_bitdelta.delta.header import Dense, LowRank, Raw
from gym_bitdelta.delta.packing_sizes import bit_bytes
from gym_bitdelta.delta.records import Record, Signs
from gym_bitdelta.runtime.kernel_layout import Field, Floats, Matrix, Writer, empty
from gym_bitdelta.runtime.products import Products


@dataclass(frozen=True, eq=False)
class Tenant:
    """What a batch needs of a delta. It lives as long as somebody holds it, whatever the cache lets go of."""

    arena: Tensor  #: int32 `[words]`
    records: Mapping[str, NDArray[np.int64]]  #: by the name of a weight, `[2, fields]`: of the matrices of layers
    rest: Mapping[str, Record]  #: of the other weights that changed, by name
    shapes: Mapping[str, tuple[int, ...]]  #: of all weights in the delta, those that did not change included
    turned: frozenset[str]  #: weights whose packed matrix is the transposed one
    biases: Mapping[str, Record] = field(default_factory=dict)  #: by name, of those that products with their matrix add
    outputs: Mapping[str, int] = field(default_factory=dict)  #: rows of weights that have other rows than the base's
    apart: str = ""
    """A module that it changed and that computes for one tenant at a time; empty where it shares every batch."""

    def own(self, names: Sequence[str]) -> str:
        """Return under which of the names of a weight the delta has it: the first that it knows; empty where it knows none.

        What is tied in the base stands there under one name, or under each where it came apart.
        """
        return next((name for name in names if name in self.shapes), "")

    def changes(self, name: str) -> bool:
        """Whether a weight is another one than the base's, or has other rows."""
        return name in self.records or name in self.rest or name in self.biases or name in self.outputs

    def change(self, name: str, products: Products) -> Tensor:
        """Return what a weight changed by, fp32, of its shape in the delta."""
        if (kept := self.rest.get(name) or self.biases.get(name)) is not None:
            return kept.values()
        if name not in self.records:
            return torch.zeros(self.shapes[name])
        turned, shape = name in self.turned, self.shapes[name]
        rows = torch.arange(shape[1] if turned else shape[0], device=self.arena.device)
        found = products.rows_of(self.arena, self.records[name].tolist(), rows)
        return found.T if turned else found

    @property
    def bytes(self) -> int:
        """What it holds in memory, in bytes."""
        kept = [*self.rest.values(), *self.biases.values()]
        parts = [part for record in kept for part in record.parts.values()]
        return sum(part.nbytes for part in [self.arena, *parts])


def prepare(delta: Delta, products: Products, pause: Callable[[], None] = lambda: None) -> Tenant:
    """Lay a delta out for a way of computing products, in one thread; `pause` is called after each weight."""
    writer, records, rest = Writer(products.arrange), dict[str, NDArray[np.int64]](), dict[str, Record]()
    for name, record in delta.records.items():
        pair = _pair(record, writer)
        if pair is not None:
            records[name] = pair
        elif record.entry.changes():
            rest[name] = _own(record)
        pause()
    biases = dict[str, Record]()
    for name in [name for name in rest if name.endswith(".bias")]:
        pair = records.get(f"{name[:-4]}weight")
        if pair is not None and pair[1][Field.INDEX] < 0:
            biases[name] = rest.pop(name)  # kept beside: a module that is no linear layer computes with the bias itself
            writer.bias(pair[1], biases[name].values().numpy())
    shapes = {name: record.entry.shape for name, record in delta.records.items()}
    turned = frozenset(name for name in records if delta.records[name].entry.turned())
    return Tenant(writer.words(), records, rest, shapes, turned, biases)


def few_rows(record: Record) -> tuple[Tensor | None, Tensor]:
    """Return which rows of a weight changed (int64; None: all), and the changes of those in fp32."""
    entry = record.entry
    if not isinstance(entry, Raw) or entry.rows is None:
        return None, record.values()
    held = record.parts["exact"] if entry.exact else record.parts["raw"].float() * record.parts["gains"]
    return record.rows(), held.view(entry.held)


def _pair(record: Record, writer: Writer) -> NDArray[np.int64] | None:
    """Append the matrices of a record and return where they lie; None where it is no matrix that kernels read."""
    entry = record.entry
    if isinstance(entry, LowRank) and len(entry.shape) == 2:
        inner, outer = _factors(record, entry)
        if inner.fits and outer.fits:
            return np.stack([writer.matrix(inner, leading=entry.leading), writer.matrix(outer)])
    if (
        isinstance(entry, Dense)
        and len(entry.shape) == 2
        and 0 not in entry.held
        and not (entry.transposed and entry.rows is not None)
    ):
        matrix = _matrix(record.signs())
        if matrix.fits:
            index = record.parts["rows"].numpy() if entry.rows is not None else None
            return np.stack([empty(), writer.matrix(matrix, index)])
    return None


def _matrix(signs: Signs) -> Matrix:
    """Return the only matrix of a stack of one."""
    bits, outer = signs.bits[:, 0].numpy(), signs.outer[:, 0].numpy()
    inner = None if signs.inner is None else signs.inner[:, 0].numpy()
    offset = None if signs.offset is None else signs.offset[0].numpy()
    if offset is not None and inner is not None:  # one for each column: a plane of ones whose scales they are
        planes = len(bits)
        bits = np.concatenate([bits, np.full_like(bits[:1], 255)])
        outer = np.concatenate([outer, np.ones_like(outer[:1])])
        inner = np.concatenate([np.broadcast_to(inner, (planes, *inner.shape[1:])), offset[None]])
        offset = None
    return Matrix(bits, signs.columns, outer, inner, signs.group, offset=offset)


def _factors(record: Record, entry: LowRank) -> tuple[Matrix, Matrix]:
    """Return the factors as matrices `[rank + leading, in]` and `[out, rank + leading]` of single signs.

    The second signs of the leading components are rows of their own, with half the scale.
    """
    rank, group = entry.rank, entry.group
    (_, out, into), rows = entry.matrices, entry.rank + entry.leading
    codes = record.parts["codes"].split([rows * bit_bytes(out), rows * bit_bytes(into)])
    scales = record.parts["scales"].float().split([rank * -(-end // group) for end in (out, into)])
    left, right = (_halved(scale.view(rank, -1), entry.leading) for scale in scales)
    bits = packing.unpack_bits(codes[0].view(rows, -1), out).T.contiguous()
    first = Matrix(codes[1].view(1, rows, -1).numpy(), into, right[None], group=group)
    column = np.ascontiguousarray(left.T * record.parts["gains"].numpy())[None]  # [1, bands, rows]
    turned = Matrix(
        packing.pack_bits(bits)[None].numpy(), rows, np.ones((1, 1, 1), dtype=np.float32), column,
        band=group if column.shape[1] > 1 else 0,
    )  # fmt: skip
    return first, turned


def _halved(scale: Tensor, leading: int) -> Floats:
    """Return the scales `[rank + leading, groups]` of first and second signs."""
    return torch.cat([scale, scale[:leading] / 2]).numpy()


def _own(record: Record) -> Record:
    """Return a record whose numbers are copies, so that the file's memory can be let go of."""
    return Record(record.entry, {part: tensor.clone() for part, tensor in record.parts.items()})

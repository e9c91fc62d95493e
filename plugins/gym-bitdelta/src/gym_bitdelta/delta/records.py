"""What the file holds of a weight, in memory: the entry of the table, and its part of each flat tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gym_bitdelta.delta import packing
from gym_bitdelta.delta.header import Dense, Entry, LowRank, Matrices, Raw, Zero
from gym_bitdelta.delta.packing_sizes import bit_bytes

DTYPES = {"F32": torch.float32, "I32": torch.int32, "F16": torch.float16, "U8": torch.uint8}


class Signs(NamedTuple):
    """The one form that all codes take for a product: `change = offset + sum_p scale_p (2 b_p - 1)`.

    Whatever the granularity, a scale is `outer[p] * inner[p]`, each of which has one number or as many as that side has; groups
    of columns stand in `outer`, one number for each.
    """

    bits: Tensor  #: uint8 `[planes, stack, rows, ceil(columns / 8)]`, packed as `packing.pack_bits` does
    outer: Tensor  #: fp32 `[planes, stack, rows or 1, groups or 1]`
    inner: Tensor | None  #: fp32 `[planes or 1, stack, 1, columns]`; None: ones
    offset: Tensor | None  #: fp32 `[stack, rows or 1, groups or 1]`, or `[stack, 1, columns]`; None: zeros
    group: int  #: columns of a group
    columns: int


@dataclass(frozen=True)
class Record:
    """One weight of a delta."""

    entry: Entry
    parts: Mapping[str, Tensor]  #: flat tensors, as long as `entry.counts()` says

    def values(self) -> Tensor:
        """Return the change in fp32, of the shape of the weight."""
        entry = self.entry
        if isinstance(entry, Zero):
            return torch.zeros(entry.shape)
        if isinstance(entry, Raw):
            held = self.parts["exact"] if entry.exact else self.parts["raw"].float() * self.parts["gains"]
            return self._placed(held.view(entry.held), entry.rows)
        if isinstance(entry, LowRank):
            left, right = self.factors()
            return _turned(left.mT @ right, entry.transposed).reshape(entry.shape)
        assert isinstance(entry, Dense)
        return self._placed(_turned(expanded(self.signs()), entry.transposed).reshape(entry.held), entry.rows)

    def rows(self) -> Tensor | None:
        """Return which rows of the first dimension the file holds (int64); None: all of them."""
        return self.parts["rows"].long() if "rows" in self.parts else None

    def signs(self) -> Signs:
        """Return the codes of a `dense-q` entry as signs, with their scales."""
        entry = self.entry
        assert isinstance(entry, Dense)
        stack, rows, columns = entry.matrices
        outer, inner = self._scales(entry)
        group = entry.group or columns
        if entry.code == "ternary":
            trits = packing.unpack_trits(self.parts["codes"].view(stack, rows, -1), columns)
            bits = torch.stack([packing.pack_bits(trits >= 1), packing.pack_bits(trits == 2)])
            return Signs(bits, (outer / 2).expand(2, *outer.shape[1:]), inner, None, group, columns)
        bits = self.parts["codes"].view(entry.bits, stack, rows, -1)
        if entry.code == "signs":
            return Signs(bits, outer, inner, None, group, columns)
        places = (2.0 ** torch.arange(entry.bits) / 2).view(-1, 1, 1, 1)
        scale = outer if inner is None or entry.scales == "rank1" else inner
        offset = None
        if entry.zero_points:
            offset = ((2**entry.bits - 1) / 2 - self.parts["zeros"].view(scale.shape[1:])) * scale[0]
        return Signs(bits, outer * places, inner, offset, group, columns)

    def factors(self) -> tuple[Tensor, Tensor]:
        """Return the factors of a `lowrank-q` entry, `[stack, rank, out]` and `[stack, rank, in]`, in fp32."""
        entry = self.entry
        assert isinstance(entry, LowRank)
        stack, *ends = entry.matrices
        sizes = [stack * entry.rank * -(-end // entry.group) for end in ends]
        bytes_ = [stack * (entry.rank + entry.leading) * bit_bytes(end) for end in ends]
        found = []
        for end, scales, codes in zip(
            ends, self.parts["scales"].float().split(sizes), self.parts["codes"].split(bytes_), strict=True
        ):
            signs = packing.unpack_bits(codes.view(stack, entry.rank + entry.leading, -1), end) * 2.0 - 1
            numbers = signs[:, : entry.rank].clone()
            numbers[:, : entry.leading] += signs[:, entry.rank :] / 2
            each = min(entry.group, end)  # a file may say any number
            groups = scales.view(stack, entry.rank, -1).repeat_interleave(each, -1)
            found.append(numbers * groups[..., :end])
        return found[0] * self.parts["gains"], found[1]

    def _scales(self, entry: Dense) -> tuple[Tensor, Tensor | None]:
        """Return what multiplies rows or groups of them `[planes, stack, ., .]`, and what multiplies columns."""
        stack, rows, columns = entry.matrices
        scales, gain, planes = self.parts["scales"].float(), self.parts["gains"], entry.planes
        if entry.scales == "rank1":
            outer, inner = scales.split([planes * stack * rows, stack * columns])
            return outer.view(planes, stack, rows, 1) * gain, inner.view(1, stack, 1, columns)
        if entry.scales == "col":
            inner = scales.view(planes, stack, 1, columns) * gain
            return torch.ones(planes, stack, 1, 1), inner
        shape = {"tensor": (1, 1), "row": (rows, 1), "group": (rows, -1)}[entry.scales]
        return scales.view(planes, stack, *shape) * gain, None

    def _placed(self, held: Tensor, rows: int | None) -> Tensor:
        if rows is None:
            return held
        whole = torch.zeros(self.entry.shape)
        whole[self.parts["rows"].long()] = held
        return whole


def expanded(signs: Signs) -> Tensor:
    """Return the matrices that signs stand for, `[stack, rows, columns]` in fp32."""
    whole = torch.zeros(())
    for plane, outer in enumerate(signs.outer):
        part = packing.unpack_bits(signs.bits[plane], signs.columns) * 2.0 - 1
        part *= spread(outer, signs)
        if signs.inner is not None:
            part *= signs.inner[min(plane, len(signs.inner) - 1)]
        whole = whole + part
    return whole if signs.offset is None else whole + spread(signs.offset, signs)


def spread(scale: Tensor, signs: Signs) -> Tensor:
    """Return scales `[stack, rows or 1, groups, columns or 1]` with one for each column, or one for all."""
    if scale.shape[-1] in (1, signs.columns):
        return scale
    return scale.repeat_interleave(signs.group, -1)[..., : signs.columns]


def _turned(matrices: Tensor, transposed: bool) -> Tensor:
    return matrices.mT if transposed else matrices


def zero(shape: tuple[int, ...]) -> Record:
    """Return the record of a weight that did not change."""
    return Record(Zero(shape=shape), {})


def raw(change: Tensor, rows: Tensor | None = None, exact: bool = False) -> Record:
    """Return the record of a change as it is, of all rows or of `rows` (sorted, int64); `exact` keeps fp32.

    Otherwise a number is off by at most 2^-11 of itself, or 2^-25 of the largest.
    """
    held = (change if rows is None else change[rows]).detach().float()
    entry = Raw(shape=tuple(change.shape), rows=None if rows is None else len(rows), exact=exact)
    parts = {} if rows is None else {"rows": rows.to(torch.int32)}
    if exact:
        return Record(entry, parts | {"exact": held.flatten()})
    gain = held.abs().amax() if held.numel() else held.new_ones(())
    gain = torch.where(gain > 0, gain, 1.0)
    return Record(entry, parts | {"raw": (held / gain).half().flatten(), "gains": gain.view(1)})


class Scales(NamedTuple):
    """Scales as a fit finds them, in fp32."""

    outer: Tensor  #: `[planes, stack, ...]`, one for each block
    inner: Tensor | None = None  #: `[stack, columns]` of rank-1 scales


def dense(
    entry: Dense, codes: Tensor, scales: Scales, zeros: Tensor | None = None, rows: Tensor | None = None
) -> Record:
    """Return the record of codes.

    Args:
        entry: what the table is to say.
        codes: uint8 `[stack, rows, columns]`, plane 0 in the lowest bit; of `ternary` 0, 1 or 2.
        scales: one for each plane and block, in the order of the file.
        zeros: of each block, where the grid has zero points.
        rows: which rows of the weight these are, where not all.

    """
    packed = packing.pack_trits(codes) if entry.code == "ternary" else packing.pack_codes(codes, entry.bits)
    outer, inner = scales
    gain = outer.abs().amax().float() if outer.numel() else torch.ones(())
    gain = torch.where(gain > 0, gain, 1.0)
    flat = (outer / gain).flatten()
    if inner is not None:
        most = inner.abs().amax()
        most = torch.where(most > 0, most, 1.0)
        flat, gain = torch.cat([flat, (inner / most).flatten()]), gain * most
    parts = {"gains": gain.view(1), "scales": flat.half(), "codes": packed.flatten()}
    parts |= {} if zeros is None else {"zeros": zeros.to(torch.uint8).flatten()}
    parts |= {} if rows is None else {"rows": rows.to(torch.int32)}
    return Record(entry, parts)


def low_rank(entry: LowRank, codes: list[Tensor], scales: list[Tensor]) -> Record:
    """Return the record of two factors, out and in.

    Args:
        entry: what the table is to say.
        codes: of each factor, uint8 `[stack, rank, out or in]`: bit 0 the sign, bit 1 the second one.
        scales: of each factor, fp32 `[stack, rank, groups]`.

    """
    packed, flat, gain = [], [], torch.ones(())
    for factor, scale in zip(codes, scales, strict=True):
        first, second = packing.pack_codes(factor, 2)
        packed.append(torch.cat([first, second[:, : entry.leading]], 1).flatten())
        most = scale.abs().amax()
        most = torch.where(most > 0, most, 1.0)
        flat.append((scale / most).half().flatten())
        gain = gain * most
    return Record(entry, {"gains": gain.view(1), "scales": torch.cat(flat), "codes": torch.cat(packed)})


def matrices(weight: Tensor, transposed: bool) -> tuple[Matrices, Tensor]:
    """Return a weight `[..., ., .]` as `[stack, out, in]`."""
    found = _turned(weight, transposed).reshape(-1, *_turned(weight, transposed).shape[-2:])
    return Matrices(*found.shape), found

"""Reads and writes `.bitdelta` files, with which other tools exchange one-bit deltas.

All numbers are little-endian. Eight bytes `BITDELTA`, a version (u32, 1) and a number of tensors (u32); then for each tensor the
length of its name (u32) and the name in UTF-8, the number of dimensions (u32) and each (u64), a scale (f32), the number of words
(u32) and the words (u32). Numbers of a tensor are flattened row by row; bit i % 32 of word i / 32 is set where number i did not
fall. The scale is the mean of |change|, summed in fp64; tensors are in the order of their names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from gym_bitdelta.delta import packing
from gym_bitdelta.delta.records import Record
from gym_core import GymError
from gym_core.files import replacing

MAGIC = b"BITDELTA"
VERSION = 1
MOST = {"tensors": 2**20, "name": 2**12, "dimensions": 8}
LARGEST = 2**40  #: product of the dimensions that are not 0: a tensor without numbers may not say what none can be
HEAD = struct.Struct("<II")


class Flat(NamedTuple):
    """One tensor of such a file."""

    shape: tuple[int, ...]
    scale: float
    words: Tensor  #: int32 `[ceil(numbers / 32)]`

    def values(self) -> Tensor:
        """Return the change in fp32."""
        bits = packing.unpack_bits(self.words.view(torch.uint8), prod(self.shape))
        return ((bits * 2.0 - 1) * self.scale).view(self.shape)


def flat(change: Tensor) -> Flat:
    """Return a change with one sign a number and one scale."""
    packed = packing.pack_bits(change.flatten() >= 0)
    padded = torch.nn.functional.pad(packed, (0, -len(packed) % 4))
    return Flat(
        tuple(change.shape), float(change.abs().double().mean()) if change.numel() else 0.0, padded.view(torch.int32)
    )


def write(path: Path, records: Mapping[str, Record]) -> None:
    """Write what records stand for, all or nothing; of more than one bit the rest is lost. Unchanged weights are left out."""
    changed = {name: records[name] for name in sorted(records) if records[name].parts}
    with replacing(path) as building, building.open("wb") as made:
        made.write(MAGIC + HEAD.pack(VERSION, len(changed)))
        for name, record in changed.items():
            found, text = flat(record.values()), name.encode()
            made.write(struct.pack("<I", len(text)) + text + struct.pack("<I", len(found.shape)))
            made.write(struct.pack(f"<{len(found.shape)}Q", *found.shape))
            made.write(struct.pack("<fI", found.scale, len(found.words)) + found.words.numpy().tobytes())


def read(path: Path) -> dict[str, Flat]:
    """Read a file. Raises GymError where it is none, was cut, goes on behind its end, or says what cannot be."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise GymError(f"it cannot be read: {error.strerror}", where=str(path)) from error
    try:
        return dict(_tensors(data))
    except (_LieError, struct.error, UnicodeDecodeError) as error:
        raise GymError(f"this is no sound .bitdelta file: {error}", where=str(path), fix="get another copy") from error


class _LieError(Exception):
    """What a file says cannot be."""


def _tensors(data: bytes) -> Iterator[tuple[str, Flat]]:
    place, names = len(MAGIC), set[str]()

    def take(form: str) -> tuple[int | float | bytes, ...]:
        nonlocal place
        found = struct.unpack_from(form, data, place)
        place += struct.calcsize(form)
        return found

    def number(form: str, what: str = "") -> int:
        found = int(take(form)[0])
        if what and found > MOST[what]:
            raise _LieError(f"{found:,} is too many for its {what}")
        return found

    if data[: len(MAGIC)] != MAGIC or number("<I") != VERSION:
        raise _LieError("it does not begin as one of version 1 does")
    for _ in range(number("<I", "tensors")):
        length = number("<I", "name")
        name = bytes(take(f"<{length}s")[0]).decode()  # type: ignore[arg-type]
        shape = tuple(int(size) for size in take(f"<{number('<I', 'dimensions')}Q"))
        scale, words = float(take("<f")[0]), number("<I")
        if name in names or not (0 <= scale < float("inf")) or words != -(-prod(shape) // 32):
            raise _LieError(f"{name!r:.60} comes twice, has no finite scale, or its words do not fit its shape")
        if prod(filter(None, shape)) >= LARGEST:
            raise _LieError(f"{name!r:.60} is larger than any tensor")
        end = place + 4 * words
        if end > len(data):
            raise _LieError(f"{name!r:.60} goes on behind the end of the file")
        names.add(name)
        held = (
            torch.frombuffer(bytearray(data[place:end]), dtype=torch.int32)
            if words
            else torch.empty(0, dtype=torch.int32)
        )
        place = end
        yield name, Flat(shape, scale, held)
    if place != len(data):
        raise _LieError(f"{len(data) - place} bytes are left behind the last tensor")

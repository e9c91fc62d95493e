"""What stands in the header of a delta, and how many numbers each entry has in the file. Nothing here needs torch.

A file of safetensors holds a few flat tensors (`PARTS`), each with what all entries have of it, one behind the other in the
order of the table. Where an entry lies is not written down: it follows from the table. So a header cannot point anywhere else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import prod
from typing import Annotated, Any, Literal, NamedTuple, cast

from pydantic import Field, PositiveInt, field_validator, model_validator

from gym_bitdelta.delta import header_table as rows
from gym_bitdelta.delta.packing_sizes import bit_bytes, trit_bytes
from gym_core import Config

KEY = "gym-delta"  #: of the metadata; the only one, for safetensors writes several in any order
FORMAT: Literal["gym-delta-2"] = "gym-delta-2"
#: Flat tensors of a file, and their number formats; wider ones first, so that each begins where its numbers may.
PARTS = {"gains": "F32", "exact": "F32", "rows": "I32", "scales": "F16", "raw": "F16", "codes": "U8", "zeros": "U8"}
WIDTHS = {"F32": 4, "I32": 4, "F16": 2, "U8": 1}

Size = Annotated[int, Field(ge=0, lt=2**40)]
Shape = Annotated[tuple[Size, ...], Field(max_length=8)]
Granularity = Literal["tensor", "row", "col", "group", "rank1"]


class Matrices(NamedTuple):
    """A weight as matrices whose columns are the inputs of a layer: one, or a stack of them."""

    stack: int
    rows: int
    columns: int


class Entry(Config):
    """What the table says of a weight."""

    kind: str
    shape: Shape
    """That of the weight of the fine-tune. The base may have other rows: its weight is cut, or filled up with zeros."""

    def counts(self) -> dict[str, int]:
        """Return how many numbers it has of each part."""
        return {}

    def changes(self) -> bool:
        """Whether anything of the weight changed."""
        return True

    def turned(self) -> bool:
        """Whether the weight is `[..., in, out]`, and what is coded of it `[..., out, in]`."""
        return False

    def said(self) -> dict[str, Any]:
        """Return it as plain data, without what is default."""
        return {"kind": self.kind} | self.model_dump(mode="json", exclude_defaults=True)


class Zero(Entry):
    """Nothing changed."""

    kind: Literal["zero"] = "zero"

    def changes(self) -> bool:
        """Return False."""
        return False


class Some(Entry):
    """What some or all rows of the first dimension changed by; in the others nothing changed."""

    rows: Size | None = None
    """How many rows are in the file, with their numbers in `rows`; by default all."""

    @model_validator(mode="after")
    def _few(self) -> Some:
        if self.rows is not None and (not self.shape or self.rows > self.shape[0]):
            raise ValueError(f"{self.rows} rows of a weight of shape {self.shape}")
        return self

    @property
    def held(self) -> tuple[int, ...]:
        """Shape of what the file holds."""
        return self.shape if self.rows is None else (self.rows, *self.shape[1:])

    def changes(self) -> bool:
        """Whether any row changed."""
        return self.rows != 0

    def counts(self) -> dict[str, int]:
        """Return the numbers of rows."""
        return {} if self.rows is None else {"rows": self.rows}


class Raw(Some):
    """The change itself: in fp16 times a gain, or in fp32."""

    kind: Literal["raw"] = "raw"
    exact: bool = False
    """Whether it is in fp32."""

    def counts(self) -> dict[str, int]:
        """Return the numbers of the change, and the gain."""
        numbers = prod(self.held)
        return super().counts() | ({"exact": numbers} if self.exact else {"raw": numbers, "gains": 1})


class Dense(Some):
    """A code for each number of the change, and scales."""

    kind: Literal["dense-q"] = "dense-q"
    code: Literal["signs", "grid", "ternary"]
    """`signs`: sum over planes j of a_j (2 b_j - 1); `grid`: s (q - z), where z is (2^bits - 1) / 2 or a whole number in `zeros`;
    `ternary`: s (t - 1)."""
    bits: Annotated[int, Field(ge=1, le=8)] = 1
    """Planes of bits; 1 for `ternary`, whose codes are in base 3."""
    scales: Granularity
    """What has scales of its own: the matrix, each row or column, `group` columns of a row; `rank1`: r_i c_j."""
    group: PositiveInt | None = None
    """Columns of a group; the last one of a row may be smaller."""
    transposed: bool = False
    """Whether the weight is `[..., in, out]`; what is coded is `[..., out, in]`."""
    zero_points: bool = False
    """Whether a grid has zeros of its own."""

    @model_validator(mode="after")
    def _fits(self) -> Dense:
        if len(self.shape) not in (2, 3):
            raise ValueError(f"a weight of shape {self.shape} has no codes")
        if (self.scales == "group") != (self.group is not None):
            raise ValueError("groups have a size, and nothing else has")
        if self.zero_points and (self.code != "grid" or self.scales == "rank1"):
            raise ValueError("zero points belong to a grid without rank-1 scales")
        if self.code == "ternary" and self.bits != 1:
            raise ValueError("three values have no planes of bits")
        return self

    def turned(self) -> bool:
        """Whether it is `transposed`."""
        return self.transposed

    @property
    def matrices(self) -> Matrices:
        """What is coded, as matrices."""
        *stack, rows, columns = self.held
        return Matrices(prod(stack), *((columns, rows) if self.transposed else (rows, columns)))

    @property
    def planes(self) -> int:
        """Scales that each block has."""
        return self.bits if self.code == "signs" else 1

    @property
    def blocks(self) -> int:
        """Blocks of numbers that share scales."""
        stack, rows, columns = self.matrices
        groups = -(-columns // self.group) if self.group else 0
        return stack * {"tensor": 1, "row": rows, "col": columns, "group": rows * groups, "rank1": rows}[self.scales]

    def counts(self) -> dict[str, int]:
        """Return the numbers of codes, scales and zero points."""
        stack, rows, columns = self.matrices
        row = trit_bytes(columns) if self.code == "ternary" else self.bits * bit_bytes(columns)
        more = stack * columns if self.scales == "rank1" else 0  # one c for all planes
        found = {"gains": 1, "scales": self.planes * self.blocks + more, "codes": stack * rows * row}
        return super().counts() | found | ({"zeros": self.blocks} if self.zero_points else {})


class LowRank(Entry):
    """Two factors, `[rank, out]` and `[rank, in]`, the first `leading` rows of each in two bits, the others in one.

    change[o, i] = sum_k left[k, o] right[k, i]; a number is s (2 b_0 - 1), or s (2 b_0 - 1 + (2 b_1 - 1) / 2) in two bits.
    """

    kind: Literal["lowrank-q"] = "lowrank-q"
    rank: PositiveInt
    leading: Size = 0
    group: PositiveInt = 128
    """Numbers of a row of a factor that share a scale; the last group of a row may be smaller."""
    transposed: bool = False
    """Whether the weight is `[..., in, out]`; the factors are those of `[..., out, in]`."""

    @model_validator(mode="after")
    def _fits(self) -> LowRank:
        if len(self.shape) not in (2, 3) or self.leading > self.rank or self.rank > min(self.shape[-2:]):
            raise ValueError(f"a weight of shape {self.shape} has no {self.leading} of {self.rank} components")
        return self

    def turned(self) -> bool:
        """Whether it is `transposed`."""
        return self.transposed

    @property
    def matrices(self) -> Matrices:
        """What the factors stand for, as matrices."""
        *stack, rows, columns = self.shape
        return Matrices(prod(stack), *((columns, rows) if self.transposed else (rows, columns)))

    def counts(self) -> dict[str, int]:
        """Return the numbers of codes and scales."""
        stack, *ends = self.matrices
        codes = sum((self.rank + self.leading) * bit_bytes(end) for end in ends)
        scales = sum(self.rank * -(-end // self.group) for end in ends)
        return {"gains": 1, "scales": stack * scales, "codes": stack * codes}


AnyEntry = Annotated[Zero | Raw | Dense | LowRank, Field(discriminator="kind")]


class Group(NamedTuple):
    """Weights of which the table says the same."""

    entry: AnyEntry
    names: tuple[str, ...]


class Header(Config):
    """What a delta says of itself: the entry `KEY` in the metadata of its file."""

    format: Literal["gym-delta-2"] = FORMAT
    """Version of the layout."""

    base: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """Fingerprint of the base (`gym_torch.checkpoints.base_fingerprint`)."""
    table: tuple[Group, ...]
    """In a file as `gym_bitdelta.delta.header_table` has it."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Name and options of what made it."""
    changed: dict[str, Any] = Field(default_factory=dict)
    """What the configuration of the fine-tune says in other words than that of the base."""
    provenance: dict[str, Any] = Field(default_factory=dict)
    """What it was made from, and what was measured."""

    @field_validator("table", mode="before")
    @classmethod
    def _read(cls, said: object) -> object:
        return rows.read(said) if isinstance(said, list) else said

    @model_validator(mode="after")
    def _once(self) -> Header:
        names = [name for group in self.table for name in group.names]
        if len(names) != len(set(names)):
            raise ValueError("a weight stands in the table twice")
        return self

    def entries(self) -> dict[str, Entry]:
        """Return what the table says of each weight, in the order of the file."""
        return {name: group.entry for group in self.table for name in group.names}

    def places(self) -> Iterator[tuple[str, Entry, dict[str, tuple[int, int]]]]:
        """Yield each weight with what the table says of it, and where it begins and ends in each part."""
        ends = dict.fromkeys(PARTS, 0)
        for name, entry in self.entries().items():
            found = {}
            for part, count in entry.counts().items():
                found[part] = ends[part], ends[part] + count
                ends[part] += count
            yield name, entry, found

    def totals(self) -> dict[str, int]:
        """Return how many numbers the file has of each part; without those of which there are none."""
        found = dict.fromkeys(PARTS, 0)
        for group in self.table:
            for part, count in group.entry.counts().items():
                found[part] += count * len(group.names)
        return {part: count for part, count in found.items() if count}

    def text(self) -> str:
        """Return it as JSON, without what is default."""
        found = self.model_dump(mode="json", exclude_defaults=True) | {"format": self.format}
        found["table"] = rows.written({name: entry.said() for name, entry in self.entries().items()})
        return json.dumps(found, separators=(",", ":"))


def grouped(entries: Mapping[str, Entry]) -> tuple[Group, ...]:
    """Return a table of these entries, in the order in which a file has them."""
    told = rows.read(rows.written({name: entry.said() for name, entry in entries.items()}))
    return tuple(Group(cast(AnyEntry, entries[names[0]]), tuple(names)) for _, names in told)


def data_bytes(entries: Mapping[str, Entry]) -> int:
    """Return the bytes of the numbers of these entries, without a header."""
    return sum(count * WIDTHS[PARTS[part]] for entry in entries.values() for part, count in entry.counts().items())

"""A compressed delta times a number."""

from __future__ import annotations

from dataclasses import replace

from gym_bitdelta.delta.file import Delta
from gym_bitdelta.delta.records import Record

FACTORS = {"gains", "exact"}  #: the parts of which a change is a multiple


def scaled(delta: Delta, scale: float) -> Delta:
    """Return a delta of which every change is `scale` times as large; 1 is the very delta, 0 changes nothing.

    The codes stay, and the file is as large.
    """
    if scale == 1:
        return delta
    return replace(delta, records={name: scaled_record(record, scale) for name, record in delta.records.items()})


def scaled_record(record: Record, scale: float) -> Record:
    """Return a record whose change is `scale` times as large."""
    parts = {part: tensor * scale if part in FACTORS else tensor for part, tensor in record.parts.items()}
    return Record(record.entry, parts)

"""How many bytes rows of codes take; the rule itself is in `gym_bitdelta.delta.packing`."""

from __future__ import annotations

TRITS = 5  #: codes of three values in a byte: 3^5 = 243


def bit_bytes(columns: int) -> int:
    """Return the bytes of a row of bits."""
    return -(-columns // 8)


def trit_bytes(columns: int) -> int:
    """Return the bytes of a row of codes of three values."""
    return -(-columns // TRITS)

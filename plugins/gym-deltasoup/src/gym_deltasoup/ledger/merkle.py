"""Merkle trees as in certificate transparency (RFC 9162, section 2.1), so that anybody's verifier reads them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def root(leaves: Sequence[bytes]) -> bytes:
    """Return the root over data of leaves: 32 bytes; of none the hash of nothing."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + leaves[0]).digest()
    half = 1 << (len(leaves) - 1).bit_length() - 1  # the largest power of two below their number
    return hashlib.sha256(b"\x01" + root(leaves[:half]) + root(leaves[half:])).digest()

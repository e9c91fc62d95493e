"""Merkle trees as in certificate transparency (RFC 9162, section 2.1), so that anybody's verifier reads them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def root(leaves: Sequence[bytes]) -> bytes:
    """Return the root over data of leaves: 32 bytes; of none the hash of nothing."""
    return _root([_leaf(each) for each in leaves])


def proof(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """Return the hashes that lead from a leaf to the root, the one beside the leaf first."""
    return _proof([_leaf(each) for each in leaves], index)


def included(leaf: bytes, index: int, count: int, path: Sequence[bytes], wanted: bytes) -> bool:
    """Return whether a leaf is the one of this number among `count` under a root (RFC 9162, section 2.1.3.2)."""
    if not 0 <= index < count:
        return False
    first, last, found = index, count - 1, _leaf(leaf)
    for each in path:
        if last == 0:
            return False
        if first % 2 or first == last:
            found = _node(each, found)
            while first % 2 == 0 and first:
                first, last = first >> 1, last >> 1
        else:
            found = _node(found, each)
        first, last = first >> 1, last >> 1
    return last == 0 and found == wanted


def _root(hashes: Sequence[bytes]) -> bytes:
    if not hashes:
        return hashlib.sha256(b"").digest()
    if len(hashes) == 1:
        return hashes[0]
    half = _half(len(hashes))
    return _node(_root(hashes[:half]), _root(hashes[half:]))


def _proof(hashes: Sequence[bytes], index: int) -> list[bytes]:
    if len(hashes) == 1:
        return []
    half = _half(len(hashes))
    if index < half:
        return [*_proof(hashes[:half], index), _root(hashes[half:])]
    return [*_proof(hashes[half:], index - half), _root(hashes[:half])]


def _half(count: int) -> int:
    """Return the largest power of two below a count."""
    return 1 << (count - 1).bit_length() - 1


def _leaf(data: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + data).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()

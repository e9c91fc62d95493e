"""Keys that two members share, and masks that are drawn from keys."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

Words = NDArray[np.uint32]


def agreed(own: X25519PrivateKey, other: bytes, purpose: bytes) -> bytes:
    """Return the key of 32 bytes that two members share for a purpose: X25519, then HKDF."""
    secret = own.exchange(X25519PublicKey.from_public_bytes(other))
    return HKDF(SHA256(), 32, None, purpose).derive(secret)


def mask(key: bytes, count: int) -> Words:
    """Return so many numbers of 32 bits that nobody can tell from random without the key: AES-256 in counter mode."""
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(4 * count)), dtype="<u4").astype(np.uint32)

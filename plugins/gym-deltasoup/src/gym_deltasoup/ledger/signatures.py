"""Ed25519 signatures over canonical text. A signature holds for one server, one round, one base and one content."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from gym_core import GymError
from gym_deltasoup.ledger.hash_chain import canonical


def message(purpose: str, told: Mapping[str, Any]) -> bytes:
    """Return what is signed: the purpose keeps a signature for one thing from being shown for another."""
    return f"gym-soup-{purpose}\n{canonical(told)}".encode()


def public(key: Ed25519PrivateKey) -> str:
    """Return the public key, 64 hexadecimal digits."""
    raw = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return raw.hex()


def signed(key: Ed25519PrivateKey, data: bytes) -> str:
    """Return the signature, 128 hexadecimal digits."""
    return key.sign(data).hex()


def holds(key: str, data: bytes, signature: str) -> bool:
    """Return whether a signature is that of this public key over these bytes; False for what is no key or no signature."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(signature), data)
    except (InvalidSignature, ValueError):
        return False
    return True


def private_key(path: Path) -> Ed25519PrivateKey:
    """Read the key in a file, or draw one and write it there, for its owner alone. Raises GymError for a file that holds none."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn = Ed25519PrivateKey.generate()
        text = drawn.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        return drawn
    try:
        found = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise GymError(f"this is no key: {str(error)[:100]}", where=str(path), key="key") from None
    if not isinstance(found, Ed25519PrivateKey):
        raise GymError("this is no Ed25519 key", where=str(path), key="key", fix="name a file that is not there yet")
    return found

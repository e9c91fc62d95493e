"""Secrets in shares, of which a number suffices and fewer tell nothing (Shamir 1979), over the field of a Mersenne prime."""

from __future__ import annotations

from collections.abc import Mapping
from secrets import randbelow

PRIME = 2**521 - 1
SECRET = 32  #: bytes of a secret
SHARE = 66  #: bytes of a share


def split(secret: bytes, shares: int, threshold: int) -> list[int]:
    """Return the shares of the points 1, 2, ... `shares`: values of a random polynomial whose constant is the secret."""
    factors = [int.from_bytes(secret, "big"), *(randbelow(PRIME) for _ in range(threshold - 1))]
    found = []
    for point in range(1, shares + 1):
        value = 0
        for factor in reversed(factors):
            value = (value * point + factor) % PRIME
        found.append(value)
    return found


def join(shares: Mapping[int, int]) -> bytes:
    """Return the secret of shares by their points: the polynomial at 0. Raises ValueError where they belong to no secret."""
    total = 0
    for point, value in shares.items():
        above = below = 1
        for other in shares:
            if other != point:
                above, below = above * -other % PRIME, below * (point - other) % PRIME
        total = (total + value * above * pow(below, -1, PRIME)) % PRIME
    if total >= 2 ** (8 * SECRET):
        raise ValueError("these shares belong to no secret")
    return total.to_bytes(SECRET, "big")

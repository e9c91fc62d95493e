"""The server's side: it adds masked numbers, and takes the masks away from the sum alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from gym_core import GymError
from gym_deltasoup.secure.masks import Words, agreed, mask
from gym_deltasoup.secure.member import PublicKeys, Reveal
from gym_deltasoup.secure.shamir import join


def unmasked(
    numbers: Mapping[str, Words],
    reveals: Mapping[str, Reveal],
    keys: Mapping[str, PublicKeys],
    shared: Collection[str],
    threshold: int,
    context: bytes,
) -> Words:
    """Return the sum of what members sent, modulo 2^32.

    Args:
        numbers: masked numbers of the members whose numbers came.
        reveals: what those of them who are still there revealed: at least `threshold`.
        keys: of all members who advertised.
        shared: members who shared their secrets: masks of all of them are in the numbers.
        threshold: as members were told.
        context: as members were told.

    Raises GymError where too few are left, or shares do not fit.

    """
    if len(reveals) < threshold:
        why = f"{len(reveals)} members revealed shares, and {threshold} are needed"
        raise GymError(why, key="threshold", fix="begin a new round")
    points = {name: number for number, name in enumerate(sorted(keys), 1)}
    size = len(next(iter(numbers.values())))
    total = np.zeros(size, np.uint32)
    for name in sorted(numbers):
        total = (
            total + numbers[name] - mask(_joined(name, {points[by]: each.own for by, each in reveals.items()}), size)
        )
    for gone in sorted(set(shared) - set(numbers)):
        own = X25519PrivateKey.from_private_bytes(
            _joined(gone, {points[by]: each.keys for by, each in reveals.items()})
        )
        if own.public_key().public_bytes_raw() != keys[gone].masks:
            raise GymError(f"the shares of {gone} do not fit its key", key="reveal", fix="begin a new round")
        for name in numbers:
            between = mask(agreed(own, keys[name].masks, b"mask" + context), size)
            total = total - between if name < gone else total + between
    return total


def _joined(name: str, held: Mapping[int, Mapping[str, int]]) -> bytes:
    try:
        return join({point: shares[name] for point, shares in held.items() if name in shares})
    except ValueError as error:
        raise GymError(f"the secret of {name}: {error}", key="reveal", fix="begin a new round") from None

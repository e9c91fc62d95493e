"""One member of a group whose sum alone is to be known: what it sends in each step, and what it never sends."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gym_core import GymError
from gym_deltasoup.secure.masks import Words, agreed, mask
from gym_deltasoup.secure.shamir import SHARE, split

NONCE = bytes(12)  #: each key encrypts one message, in one direction


@dataclass(frozen=True)
class PublicKeys:
    """What a member tells all others first."""

    shares: bytes  #: encrypts shares of secrets
    masks: bytes  #: makes the masks that cancel


@dataclass(frozen=True)
class Reveal:
    """Shares that take masks away: of each member the one or the other, never both."""

    own: Mapping[str, int] = field(default_factory=dict)  #: of the own masks of members whose numbers came
    keys: Mapping[str, int] = field(default_factory=dict)  #: of the keys of members who dropped out


class SecureMember:
    """Steps: `advertise`, `share`, `receive`, `masked`, `confirm`, `reveal`, each once (Bonawitz et al. 2017, figure 4).

    It protects against a server that is curious and follows the steps, and against members below the threshold who tell it all
    they know. Members sign what `advertise` and `confirm` return, so that a server can neither hand on other keys nor tell some
    that others came and some that they did not: for two such sets it needs `2 threshold - members` members who sign both
    (section 6).

    Args:
        name: of this member.
        context: names server, round and group, so that nothing counts elsewhere.

    """

    def __init__(self, name: str, context: bytes) -> None:
        """Draw the secrets of this round."""
        self.name, self.context = name, context
        self._shares_key, self._masks_key = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self._own = os.urandom(32)
        self._keys: dict[str, PublicKeys] = {}
        self._threshold = 0
        self._held: dict[str, tuple[int, int]] = {}
        self._came: frozenset[str] = frozenset()
        self._done = False

    def advertise(self) -> PublicKeys:
        """Return the public keys."""
        return PublicKeys(
            self._shares_key.public_key().public_bytes_raw(), self._masks_key.public_key().public_bytes_raw()
        )

    def share(self, keys: Mapping[str, PublicKeys], threshold: int) -> dict[str, bytes]:
        """Return, for each other member, shares of the two secrets that only it can read.

        Raises GymError for a threshold at which a server could ask two halves of a group for different things, and where keys are
        not those of different members, this one among them.
        """
        distinct = {key for each in keys.values() for key in (each.shares, each.masks)}
        if keys.get(self.name) != self.advertise() or len(distinct) != 2 * len(keys) or self._keys:
            raise GymError("these are not the keys of different members", key="keys", fix="begin a new round")
        if not len(keys) / 2 < threshold <= len(keys):
            why = f"{threshold} of {len(keys)} is no safe threshold"
            raise GymError(why, key="threshold", fix=f"give {len(keys) // 2 + 1} to {len(keys)}")
        self._keys, self._threshold = dict(keys), threshold
        secrets = (self._own, self._masks_key.private_bytes_raw())
        pairs = zip(*(split(secret, len(keys), threshold) for secret in secrets), strict=True)
        found = {}
        for other, pair in zip(sorted(keys), pairs, strict=True):
            if other == self.name:
                self._held[other] = pair
            else:
                text = b"".join(value.to_bytes(SHARE, "big") for value in pair)
                found[other] = self._cipher(self.name, other).encrypt(NONCE, text, None)
        return found

    def receive(self, shares: Mapping[str, bytes]) -> None:
        """Keep what others shared, by their names. Raises GymError for what they did not write for this member."""
        for other, text in shares.items():
            try:
                pair = self._cipher(other, self.name).decrypt(NONCE, text, None)
            except (InvalidTag, KeyError):
                raise GymError(f"the shares of {other} were not written for {self.name}", key="shares") from None
            self._held[other] = int.from_bytes(pair[:SHARE], "big"), int.from_bytes(pair[SHARE:], "big")

    def masked(self, values: Words) -> Words:
        """Return whole numbers under the own mask and one for each other member who shared. Raises GymError for too few."""
        self._enough(self._held)
        found = values + mask(self._own, len(values))
        for other in sorted(self._held):
            if other != self.name:
                between = mask(self._between(other), len(values))
                found = found + between if self.name < other else found - between
        return found

    def confirm(self, came: Collection[str]) -> list[str]:
        """Return whose numbers came, to be signed. Once: who signs two sets lets a server take the masks from single changes.

        Raises GymError where this member is not among them, too few are, or some did not share.
        """
        if self._came and self._came != {*came}:
            raise GymError("whose numbers came was confirmed already, as others", key="came")
        if not {*came} <= {*self._held}:
            raise GymError(f"{sorted({*came} - {*self._held})[0]} shared nothing with {self.name}", key="came")
        self._enough(came)
        if self.name not in came:
            raise GymError(f"the numbers of {self.name} did not come", key="came")
        self._came = frozenset(came)
        return sorted(came)

    def reveal(self, confirmed: Mapping[str, Collection[str]]) -> Reveal:
        """Return shares that take away the masks. Once: the other half would show single changes.

        Args:
            confirmed: what members of the group signed, each by itself: whose numbers came.

        Raises GymError where one of them was told of others than this member was, or fewer than the threshold signed.

        """
        if self._done:
            raise GymError("shares were revealed already, and never are a second time", key="reveal")
        for name, came in sorted(confirmed.items()):
            if name not in self._came or {*came} != self._came:
                why = f"{name} was told of other members whose numbers came than {self.name}"
                raise GymError(why, key="came", fix="do not go on with this server")
        self._enough(confirmed)
        self._done = True
        own = {name: pair[0] for name, pair in self._held.items() if name in self._came}
        return Reveal(own, {name: pair[1] for name, pair in self._held.items() if name not in self._came})

    def _between(self, other: str) -> bytes:
        return agreed(self._masks_key, self._keys[other].masks, b"mask" + self.context)

    def _cipher(self, sender: str, receiver: str) -> AESGCM:
        other = receiver if sender == self.name else sender
        purpose = b"\0".join([b"shares", self.context, sender.encode(), receiver.encode()])
        return AESGCM(agreed(self._shares_key, self._keys[other].shares, purpose))

    def _enough(self, names: Collection[str]) -> None:
        count = len(names)
        if not self._threshold or count < self._threshold:
            why = f"{count} members are left, and {self._threshold} are needed"
            raise GymError(why, key="threshold", fix="begin a new round, with a lower threshold or more members")

"""Events of a community: canonical text, each hashed with the one before it, so that no byte of the past changes unseen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

START = "0" * 64  #: stands in the place of the hash before the first event


class Event(NamedTuple):
    """A row of the ledger."""

    number: int  #: 1, 2, 3, ...
    round: int  #: the round that it belongs to
    body: str  #: canonical JSON
    hash: str  #: of the body and of the hash before it

    @property
    def data(self) -> dict[str, Any]:
        """What happened, with the key `event`."""
        found: dict[str, Any] = json.loads(self.body)
        return found


def canonical(data: Mapping[str, Any]) -> str:
    """Return the one text of plain data: sorted keys, no spaces, ASCII. Raises ValueError for a number that is not finite."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def chained(before: str, number: int, round_: int, body: str) -> str:
    """Return the hash of an event: SHA-256 over the hash before it, its number, its round and its body."""
    head = f"gym-soup-event\n{before}\n{number}\n{round_}\n"
    return hashlib.sha256(head.encode() + body.encode()).hexdigest()


def anchor(server: str, number: int, root: str) -> bytes:
    """Return what a server signs of a round: its name, the number of the round, and the Merkle root of its events."""
    return f"gym-soup-round\n{server}\n{number}\n{root}".encode()

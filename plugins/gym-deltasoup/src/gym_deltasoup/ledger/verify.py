"""Whether a ledger is what it says. An outsider needs its events, and a hash of an earlier day to know that none is gone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gym_deltasoup.ledger import merkle
from gym_deltasoup.ledger.hash_chain import START, Event, anchor, chained
from gym_deltasoup.ledger.signatures import holds, message


@dataclass
class Verified:
    """What was looked at, and what is wrong."""

    server: str = ""
    events: int = 0
    head: str = START  #: hash of the last event: write it down elsewhere, and nothing before it can change unseen
    rounds: dict[int, str] = field(default_factory=dict)  #: Merkle roots of closed rounds
    accepted: int = 0
    signatures: int = 0
    problems: list[str] = field(default_factory=list)


def verify(server: str, events: Iterable[Event], known: str | None = None) -> Verified:
    """Check numbers, hashes, signatures, Merkle roots and rewards; with a `known` hash, that its event is there."""
    found = Verified(server)
    replay = _Replay(found)
    seen = known is None or known == START
    for event in events:
        if event.number != found.events + 1:
            found.problems.append(f"event {found.events + 1} is missing: event {event.number} is in its place")
        if event.hash != chained(found.head, event.number, event.round, event.body):
            found.problems.append(f"event {event.number} or one before it is not what was written")
        found.events, found.head = event.number, event.hash
        seen = seen or event.hash == known
        try:
            replay.take(event)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            found.problems.append(f"event {event.number} cannot be read: {str(error)[:80]}")
    if not seen:
        found.problems.append(f"no event has the hash {known}: the ledger was cut, or is another one")
    return found


class _Replay:
    """Follows the events, and compares what they say with what follows from those before them."""

    def __init__(self, found: Verified) -> None:
        self.found = found
        self.keys: dict[str, str | None] = {}
        self.server_key: str | None = None
        self.base = ""
        self.bodies: dict[int, list[bytes]] = {}
        self.accepted: dict[int, list[str]] = {}
        self.contents: dict[int, set[str]] = {}
        self.handlers = {
            "base": self._base,
            "server key": self._server_key,
            "enrolled": self._enrolled,
            "accepted": self._accepted,
            "round closed": self._closed,
        }

    def take(self, event: Event) -> None:
        data = event.data
        handler = self.handlers.get(data["event"])
        if handler is not None:
            handler(event, data)
        self.bodies.setdefault(event.round, []).append(event.body.encode())

    def _wrong(self, event: Event, what: str) -> None:
        self.found.problems.append(f"event {event.number}: {what}")

    def _base(self, event: Event, data: Mapping[str, Any]) -> None:
        if self.base:
            self._wrong(event, "the base changes")
        self.base = data["fingerprint"]

    def _server_key(self, event: Event, data: Mapping[str, Any]) -> None:
        self.server_key = data["key"]

    def _enrolled(self, event: Event, data: Mapping[str, Any]) -> None:
        if data["member"] in self.keys:
            self._wrong(event, f"{data['member']} is enrolled twice")
        self.keys[data["member"]] = data["key"]

    def _accepted(self, event: Event, data: Mapping[str, Any]) -> None:
        member = data["member"]
        if member not in self.keys:
            self._wrong(event, f"{member} is not enrolled")
        if event.round in self.found.rounds:
            self._wrong(event, f"round {event.round} was closed before")
        if member in self.accepted.setdefault(event.round, []):
            self._wrong(event, f"{member} contributes twice to round {event.round}")
        if data["content"] in self.contents.setdefault(event.round, set()):
            self._wrong(event, "these bytes were accepted before in this round")
        self.accepted[event.round].append(member)
        self.contents[event.round].add(data["content"])
        self.found.accepted += 1
        key = self.keys.get(member)
        if key is not None:
            told = data["manifest"]
            agreed = {name: data[name] for name in ("member", "content", "size", "details")}
            wanted = {**agreed, "server": self.found.server, "round": event.round, "base": self.base}
            wrong = next((name for name, value in wanted.items() if told.get(name) != value), None)
            if wrong is not None:
                self._wrong(event, f"what {member} signed has another `{wrong}`")
            if not holds(key, message("contribution", told), data["signature"]):
                self._wrong(event, f"the signature of {member} does not hold")
            self.found.signatures += 1

    def _closed(self, event: Event, data: Mapping[str, Any]) -> None:
        number, bodies = event.round, self.bodies.get(event.round, [])
        root = merkle.root(bodies).hex()
        if (root, len(bodies)) != (data["root"], data["events"]):
            self._wrong(event, f"the Merkle root of round {number} is not that of its events")
        if number in self.found.rounds:
            self._wrong(event, f"round {number} is closed twice")
        self.found.rounds[number] = data["root"]
        judged = [*data["accepted"], *(name for name in data["refused"] if name not in data["accepted"])]
        if sorted(judged) != sorted(self.accepted.get(number, [])):
            self._wrong(event, f"round {number} does not count each accepted contribution once")
        points = data["points"]
        if any(each < 0 for each in points.values()) or sum(points.values()) not in (0, data["pool"]):
            self._wrong(event, f"the points of round {number} do not sum to {data['pool']}")
        for name in sorted(name for name, each in points.items() if each and name not in data["accepted"]):
            self._wrong(event, f"round {number} gives points to {name}, of whom it accepted nothing")
        if self.server_key is not None:
            text = anchor(self.found.server, number, data["root"])
            if not holds(self.server_key, text, data.get("signature", "")):
                self._wrong(event, f"the server did not sign the root of round {number}")


def exported(server: str, events: Iterable[Event]) -> Iterable[str]:
    """Yield a ledger as lines of JSON: the server, then an event a line. `imported` reads them."""
    yield json.dumps({"server": server})
    for event in events:
        yield json.dumps(event._asdict())


def imported(lines: Iterable[str]) -> tuple[str, list[Event]]:
    """Return the server and the events of lines of JSON. Raises ValueError for others."""
    found = [json.loads(line) for line in lines if line.strip()]
    if not found or set(found[0]) != {"server"}:
        raise ValueError("the first line does not name a server")
    try:
        return str(found[0]["server"]), [Event(**each) for each in found[1:]]
    except TypeError as error:
        raise ValueError(f"a line is no event: {error}") from None

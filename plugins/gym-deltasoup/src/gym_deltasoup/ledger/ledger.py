"""What a community remembers: events that are only appended, and tables that follow from them, changed in one transaction."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gym_core import GymError
from gym_deltasoup.ledger.database import open_database
from gym_deltasoup.ledger.hash_chain import START, Event, canonical, chained


@dataclass(frozen=True)
class Round:
    """A round that is open, or was."""

    number: int  #: 1, 2, 3, ...
    opened: float  #: seconds since 1970
    state: str  #: `open`; `closing` while what was accepted is merged; `closed`

    def is_over(self, now: float, window: float) -> bool:
        """Return whether it was open so many seconds; also by a clock that was set back so far that it would not end."""
        return abs(now - self.opened) >= window


@dataclass(frozen=True)
class Member:
    """Somebody who may contribute."""

    name: str
    key: str | None  #: Ed25519 public key, 64 hexadecimal digits; None for users of the Python API, who sign nothing
    round: int  #: since which round
    reputation: float  #: 0 to 1


@dataclass(frozen=True)
class Contribution:
    """A file of weights, and whose it is."""

    round: int
    member: str
    content: str  #: SHA-256 of the file
    size: int  #: bytes
    kind: str  #: of an artifact: `model`, `adapter` or `delta`
    details: Mapping[str, Any] = field(default_factory=dict)  #: what opens it beside the weights


class Ledger:
    """Reads and writes one ledger. Threads and processes may share a folder: whoever writes is alone meanwhile."""

    def __init__(self, folder: Path) -> None:
        """Open the ledger in a folder, with a first round. Raises GymError where it cannot be used."""
        self.folder = folder
        self.database = open_database(folder)
        with self.database.writing() as rows:
            if rows.execute("SELECT 1 FROM rounds").fetchone() is None:
                self.open_round(rows, 1)

    def close(self) -> None:
        """Close the file."""
        self.database.close()

    def writing(self) -> AbstractContextManager[sqlite3.Connection]:
        """Return a transaction: see `gym_data.database.Database.writing`."""
        return self.database.writing()

    def identity(self, name: str) -> str | None:
        """Return a word that this ledger is known by: `server`, its random name; `base`; `kind`."""
        with self.database.reading() as rows:
            found = rows.execute("SELECT value FROM identity WHERE name = ?", (name,)).fetchone()
        return None if found is None else str(found[0])

    def append(self, rows: sqlite3.Connection, event: str, round_: int, /, **data: Any) -> Event:
        """Append an event inside a transaction."""
        last = rows.execute("SELECT number, hash FROM events ORDER BY number DESC LIMIT 1").fetchone() or (0, START)
        body = canonical({"event": event, "time": round(time.time(), 3), **data})
        made = Event(last[0] + 1, round_, body, chained(last[1], last[0] + 1, round_, body))
        rows.execute("INSERT INTO events VALUES (?, ?, ?, ?)", made)
        return made

    def events(self, after: int = 0, most: int = 1000) -> list[Event]:
        """Return events behind a number, at most so many."""
        query = "SELECT number, round, body, hash FROM events WHERE number > ? ORDER BY number LIMIT ?"
        with self.database.reading() as rows:
            return [Event(*row) for row in rows.execute(query, (after, most))]

    def every_event(self) -> Iterator[Event]:
        """Yield all events."""
        last = 0
        while page := self.events(last):
            yield from page
            last = page[-1].number

    def open_round(self, rows: sqlite3.Connection, number: int) -> None:
        """Begin a round inside a transaction."""
        rows.execute("INSERT INTO rounds (number, opened) VALUES (?, ?)", (number, time.time()))
        self.append(rows, "round opened", number)

    def round(self, number: int | None = None) -> Round:
        """Return a round, by default the newest. Raises GymError where there is none."""
        query = "SELECT number, opened, state FROM rounds WHERE number = coalesce(?, (SELECT max(number) FROM rounds))"
        with self.database.reading() as rows:
            found = rows.execute(query, (number,)).fetchone()
        if found is None:
            raise GymError(f"there is no round {number}", where=str(self.folder))
        return Round(*found)

    def member(self, name: str) -> Member | None:
        """Return a member; None where there is none of the name."""
        with self.database.reading() as rows:
            found = rows.execute("SELECT name, key, round, reputation FROM members WHERE name = ?", (name,)).fetchone()
        return None if found is None else Member(*found)

    def members(self) -> dict[str, Member]:
        """Return all members by name."""
        with self.database.reading() as rows:
            found = rows.execute("SELECT name, key, round, reputation FROM members ORDER BY name")
            return {row[0]: Member(*row) for row in found}

    def contributions(self, number: int) -> list[Contribution]:
        """Return what was accepted in a round, in the order of acceptance."""
        query = "SELECT round, member, content, size, kind, details FROM contributions WHERE round = ? ORDER BY event"
        with self.database.reading() as rows:
            return [
                Contribution(round_, member, content, size, kind, json.loads(details))
                for round_, member, content, size, kind, details in rows.execute(query, (number,))
            ]

    def participation(self, number: int, rounds: int = 10) -> dict[str, float]:
        """Return for each member the share of the rounds before this one, of the last few, in which it passed the gate."""
        first = max(1, number - rounds + 1)
        query = (
            "SELECT member, count(*) FROM contributions WHERE passed = 1 AND round >= ? AND round < ? GROUP BY member"
        )
        with self.database.reading() as rows:
            passed = dict(rows.execute(query, (first, number)))
        return {name: (passed.get(name, 0)) / max(1, number - first) for name in self.members()}

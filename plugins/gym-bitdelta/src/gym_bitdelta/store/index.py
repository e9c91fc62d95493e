"""The index of a store: one file of rows (`gym_data.database`).

A row of `versions` is a version of a user. Its record is hashed into its name, so a damaged row is noticed. `files` has the files
of the newest versions: it says quickly whether one is still in use, and a newest row that got lost is missed there.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gym_bitdelta.store import record
from gym_bitdelta.store.record import Variant
from gym_core import GymError
from gym_core.errors import Problem, printable
from gym_data.database import Database, Schema

NAME = "index.sqlite"
SCHEMA = Schema(
    "index",
    "gym-bitdelta",
    1,
    """
CREATE TABLE versions (user TEXT, number INTEGER, version TEXT, record TEXT, PRIMARY KEY (user, number)) WITHOUT ROWID;
CREATE TABLE files (sha256 TEXT, user TEXT, version TEXT, PRIMARY KEY (sha256, user)) WITHOUT ROWID;
CREATE INDEX files_of_user ON files (user);
""",
)
_SHA256 = re.compile("[0-9a-f]{64}")
_REMOVE = ("DELETE FROM versions WHERE user = ?", "DELETE FROM files WHERE user = ?")
_NEWEST = (
    "SELECT user, number, version, record FROM versions AS each "
    "WHERE number = (SELECT max(number) FROM versions WHERE user = each.user)"
)


class Listing(NamedTuple):
    """The newest version of each user, by user; and what is not what was written."""

    variants: list[Variant]
    damaged: list[Problem]


class Row(NamedTuple):
    """A row of `versions`."""

    user: str
    number: int
    version: str
    record: str


class Index(Database):
    """The rows."""

    def __init__(self, root: Path, create: bool) -> None:
        """Open the index in a folder. Raises GymError where there is none and none may be created, or it is damaged."""
        self._users: tuple[object, Sequence[str]] = None, ()  # who there was, and in which state of the index
        if not (root / NAME).exists():
            _check_new(root, create)
        super().__init__(root / NAME, SCHEMA)

    def close(self) -> None:
        """Close the connection of this process."""
        super().close()
        self._users = None, ()

    def newest(self, connection: sqlite3.Connection, user: str) -> Variant | None:
        """Return the newest version of a user; None where there is none. Raises GymError where its row is damaged."""
        row = connection.execute(f"{_NEWEST} AND user = ?", (user,)).fetchone()
        held = set(connection.execute("SELECT sha256, version FROM files WHERE user = ?", (user,)))
        if row is None and not held:
            return None
        return self._agreeing(user, row, held)

    def listing(self, connection: sqlite3.Connection) -> Listing:
        """Return the newest version of each user."""
        rows = {row[0]: row for row in connection.execute(_NEWEST)}
        held: dict[str, set[tuple[str, str]]] = {user: set() for user in rows}
        for user, *file in connection.execute("SELECT user, sha256, version FROM files"):
            held.setdefault(user, set()).add((file[0], file[1]))
        found = Listing([], [])
        for user in sorted(held, key=str):
            try:
                found.variants.append(self._agreeing(user, rows.get(user), held[user]))
            except GymError as error:
                found.damaged.extend(error.problems)
        return found

    def users(self) -> Sequence[str]:
        """Return who has a variant, sorted. Records are not read: whoever opens a damaged one is told.

        It costs little where nobody wrote since it was last asked, so that each request to a server can ask.
        """
        with self.reading() as connection:
            (others,) = connection.execute("PRAGMA data_version").fetchone()
            state = os.getpid(), others, connection.total_changes
            if self._users[0] != state:
                found = connection.execute("SELECT DISTINCT user FROM files")
                self._users = state, sorted(user for (user,) in found if isinstance(user, str))
            return self._users[1]

    def rows(self, connection: sqlite3.Connection, user: str) -> list[Row]:
        """Return all rows of a user, the oldest first."""
        query = "SELECT user, number, version, record FROM versions WHERE user = ? ORDER BY number"
        return [Row(*row) for row in connection.execute(query, (user,))]

    def parsed(self, row: Row) -> Variant:
        """Return what a row says. Raises GymError where it is not what was written."""
        found = record.read(*row)
        if found is None:
            raise self._damaged(row.user)
        return found

    def add(self, connection: sqlite3.Connection, variant: Variant) -> None:
        """Append a version, whose files take the place of those of the one before it."""
        row = Row(variant.user, variant.number, variant.id, variant.text)
        connection.execute("INSERT INTO versions VALUES (?, ?, ?, ?)", row)
        connection.execute("DELETE FROM files WHERE user = ?", (variant.user,))
        held = {(each.sha256, variant.user, variant.id) for each in variant.files}
        connection.executemany("INSERT INTO files VALUES (?, ?, ?)", sorted(held))

    def remove(self, connection: sqlite3.Connection, user: str) -> list[str] | None:
        """Take a user out with its lineage; return the hashes of its files, None where there is none. Damaged rows go as well."""
        rows = connection.execute("SELECT sha256 FROM files WHERE user = ?", (user,))
        found = [row[0] for row in rows if isinstance(row[0], str) and _SHA256.fullmatch(row[0])]
        gone = [connection.execute(query, (user,)).rowcount for query in _REMOVE]
        return found if any(gone) else None

    def unused(self, connection: sqlite3.Connection, hashes: Iterable[str]) -> list[str]:
        """Return those files that no newest version has."""
        query = "SELECT 1 FROM files WHERE sha256 = ?"
        return [each for each in hashes if connection.execute(query, (each,)).fetchone() is None]

    def problems(self, connection: sqlite3.Connection) -> list[Problem]:
        """Return what is wrong with the file as such."""
        found = [str(line) for (line,) in connection.execute("PRAGMA integrity_check(5)") if line != "ok"]
        return [Problem(f"the index is damaged: {line}", str(self.path), fix="put back a copy of it") for line in found]

    def _agreeing(self, user: str, row: tuple[Any, ...] | None, held: set[tuple[str, str]]) -> Variant:
        """Return what the newest row of a user says, which has to have these files. Raises GymError where it is damaged."""
        found = record.read(*row) if row else None
        if row is None or found is None or held != {(each.sha256, row[2]) for each in found.files}:
            raise self._damaged(user)
        return found

    def _damaged(self, user: str) -> GymError:
        fix = "put back a copy of the index, or remove this variant and create it again"
        return GymError(
            f"what the index holds of `{printable(str(user), 80)}` is not what was written",
            where=str(self.path),
            fix=fix,
        )


def _check_new(root: Path, allowed: bool) -> None:
    """Raise GymError where no index may be made, or files of an older one lie there."""
    if not allowed:
        raise GymError(
            "there is no store of variants", where=str(root), fix="name the folder with `--store` or $GYM_VARIANTS"
        )
    if any((root / "files").glob("*/*")):
        raise GymError(
            "there are files of variants, and the index that names them is gone",
            where=str(root / NAME),
            fix="put back a copy of it, or choose an empty folder",
        )

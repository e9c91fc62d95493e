"""The index of a store: one SQLite file in WAL mode, where a change is there in whole or not at all, also after `kill -9`.

A row of `versions` is a version of a user. Its record is hashed into its name, so a damaged row is noticed. `files` has the files
of the newest versions: it says quickly whether one is still in use, and a newest row that got lost is missed there.
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

from gym_bitdelta.store import record
from gym_bitdelta.store.record import Variant
from gym_core import BusyError, GymError
from gym_core.errors import Problem, printable
from gym_core.files import BUILDING, remove, to_disk

NAME = "index.sqlite"
LAYOUT = 1
WAIT = 60.0  #: seconds that a writer waits for another one
_SCHEMA = f"""
PRAGMA journal_mode = WAL;
PRAGMA user_version = {LAYOUT};
CREATE TABLE versions (user TEXT, number INTEGER, version TEXT, record TEXT, PRIMARY KEY (user, number)) WITHOUT ROWID;
CREATE TABLE files (sha256 TEXT, user TEXT, version TEXT, PRIMARY KEY (sha256, user)) WITHOUT ROWID;
CREATE INDEX files_of_user ON files (user);
"""
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


class Index:
    """The rows. Threads take turns; a forked process has a connection of its own."""

    def __init__(self, root: Path, create: bool) -> None:
        """Open the index in a folder. Raises GymError where there is none and none may be created, or it is damaged."""
        self.path = root / NAME
        self._turn = threading.RLock()
        self._connections: dict[int, sqlite3.Connection] = {}
        self._users: tuple[object, Sequence[str]] = None, ()  # who there was, and in which state of the index
        if not self.path.exists():
            self._create(root, create)
        with self.reading() as connection:
            (layout,) = connection.execute("PRAGMA user_version").fetchone()
        if layout != LAYOUT:
            raise GymError(
                f"this index has layout {layout}, and this version reads layout {LAYOUT}",
                where=str(self.path),
                fix="put back a copy, or use the version of gym-bitdelta that wrote it",
            )

    def close(self) -> None:
        """Close the connection of this process."""
        with self._turn:
            self._users = None, ()
            connection = self._connections.pop(os.getpid(), None)
            if connection is not None:
                connection.close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Give a connection that sees one state of the index during the block, whatever others write meanwhile.

        Raises GymError for whatever is wrong with the file or the disk.
        """
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Give a connection that alone may write; what the block changes is there when it ends, or nothing where it raises."""
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._turn:
            try:
                connection = self._connection()
                connection.execute(begin)
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    with suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                    raise
            except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter: of a message that quotes damaged text
                raise self._told(error) from error

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

    def _connection(self) -> sqlite3.Connection:
        """Return the connection of this process; that of the process it was forked from is never touched."""
        if os.getpid() not in self._connections:
            existing = f"{self.path.absolute().as_uri()}?mode=rw"
            made = sqlite3.connect(existing, WAIT, isolation_level=None, check_same_thread=False, uri=True)
            self._connections[os.getpid()] = made
            made.text_factory = lambda text: text.decode("utf-8", "backslashreplace")  # damage is told of, not raised
            made.execute("PRAGMA synchronous = FULL")
        return self._connections[os.getpid()]

    def _create(self, root: Path, allowed: bool) -> None:
        """Make an empty index, whole or not at all. Raises GymError where files of an older one lie there."""
        if not allowed:
            raise GymError(
                "there is no store of variants", where=str(root), fix="name the folder with `--store` or $GYM_VARIANTS"
            )
        if any((root / "files").glob("*/*")):
            raise GymError(
                "there are files of variants, and the index that names them is gone",
                where=str(self.path),
                fix="put back a copy of it, or choose an empty folder",
            )
        building = self.path.with_name(f".{NAME}.{os.getpid()}-{token_hex(4)}{BUILDING}")
        try:
            root.mkdir(parents=True, exist_ok=True)
            made = sqlite3.connect(building, isolation_level=None)
            try:
                made.executescript(_SCHEMA)
            finally:
                made.close()
            to_disk(building)
            with suppress(FileExistsError):  # another process was first, and may have written to it
                self.path.hardlink_to(building)
        except (OSError, sqlite3.Error) as error:
            if self.path.exists():  # another process was first, and its `gc` took away what was made here
                return
            fix = "choose a folder on a local disk that has hard links"
            raise GymError(f"no store can be made here: {error}", where=str(root), fix=fix) from error
        finally:
            with suppress(NotADirectoryError):  # then nothing was made
                remove(building)

    def _told(self, error: sqlite3.Error | UnicodeDecodeError) -> GymError:
        """Return an error of SQLite as one that a user can act on."""
        name = getattr(error, "sqlite_errorname", "SQLITE_CORRUPT")
        where = str(self.path)
        if name.startswith("SQLITE_BUSY"):
            return BusyError(f"others have been writing for {WAIT:.0f} seconds", where=where, fix="try again")
        if name.startswith(("SQLITE_FULL", "SQLITE_IOERR")):
            return GymError(
                f"the disk does not take it: {error}", where=where, fix="make room; what was there before is whole"
            )
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            return GymError(f"the index is damaged: {error}", where=where, fix="put back a copy of it")
        fix = "let this user write to the folder: whoever reads the index, or opens a variant, writes there"
        return GymError(f"the index cannot be used: {error}", where=where, fix=fix)

"""A file of rows that several processes share: SQLite in WAL mode, where a change is there in whole or not at all, also after
`kill -9`.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from gym_core import BusyError, GymError
from gym_core.files import BUILDING, remove, to_disk

WAIT = 60.0  #: seconds that a writer waits for another one


class FullError(GymError):
    """The disk takes no more."""


@dataclass(frozen=True)
class Schema:
    """What a new file begins with."""

    what: str  #: what errors call it: `index`, `ledger`
    package: str  #: whose it is
    layout: int  #: raised whenever the tables change
    script: str  #: makes the tables


class Database:
    """The rows. Threads take turns; a forked process has a connection of its own."""

    def __init__(self, path: Path, schema: Schema) -> None:
        """Open a file, which is made where there is none. Raises GymError where it cannot be used, or has another layout."""
        self.path, self.schema = path, schema
        self._turn = threading.RLock()
        self._connections: dict[int, sqlite3.Connection] = {}
        if not path.exists():
            self._create()
        with self.reading() as connection:
            (layout,) = connection.execute("PRAGMA user_version").fetchone()
        if layout != schema.layout:
            raise GymError(
                f"this {schema.what} has layout {layout}, and this version reads layout {schema.layout}",
                where=str(path),
                fix=f"put back a copy, or use the version of {schema.package} that wrote it",
            )

    def close(self) -> None:
        """Close the connection of this process."""
        with self._turn:
            connection = self._connections.pop(os.getpid(), None)
            if connection is not None:
                connection.close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Give a connection that sees one state of the file during the block, whatever others write meanwhile.

        Raises GymError for whatever is wrong with the file or the disk.
        """
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Give a connection that alone may write: what the block changes is on the disk when it ends, or nothing where it raises.

        Raises as `reading` does, BusyError where others wrote for too long, and FullError.
        """
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._turn:
            try:
                connection = self._connection()
                if connection.in_transaction:  # a block within a block of this thread
                    yield connection
                    return
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

    def _connection(self) -> sqlite3.Connection:
        """Return the connection of this process; that of the process it was forked from is never touched."""
        if os.getpid() not in self._connections:
            existing = f"{self.path.absolute().as_uri()}?mode=rw"
            made = sqlite3.connect(existing, WAIT, isolation_level=None, check_same_thread=False, uri=True)
            self._connections[os.getpid()] = made
            made.text_factory = lambda text: text.decode("utf-8", "backslashreplace")  # damage is told of, not raised
            made.execute("PRAGMA synchronous = FULL")
        return self._connections[os.getpid()]

    def _create(self) -> None:
        """Make an empty file, whole or not at all."""
        schema, folder = self.schema, self.path.parent
        building = self.path.with_name(f".{self.path.name}.{os.getpid()}-{token_hex(4)}{BUILDING}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            made = sqlite3.connect(building, isolation_level=None)
            try:
                made.executescript(f"PRAGMA journal_mode = WAL; PRAGMA user_version = {schema.layout}; {schema.script}")
            finally:
                made.close()
            to_disk(building)
            with suppress(FileExistsError):  # another process was first, and may have written to it
                self.path.hardlink_to(building)
        except (OSError, sqlite3.Error) as error:
            if self.path.exists():  # another process was first, and cleared away what was made here
                return
            fix = "choose a folder on a local disk that has hard links"
            raise GymError(f"no {schema.what} can be made here: {error}", where=str(folder), fix=fix) from error
        finally:
            with suppress(NotADirectoryError):  # then nothing was made
                remove(building)

    def _told(self, error: sqlite3.Error | UnicodeDecodeError) -> GymError:
        """Return an error of SQLite as one that a user can act on."""
        name = getattr(error, "sqlite_errorname", "SQLITE_CORRUPT")
        where, what = str(self.path), self.schema.what
        if name.startswith("SQLITE_BUSY"):
            return BusyError(f"others have been writing for {WAIT:.0f} seconds", where=where, fix="try again")
        if name.startswith(("SQLITE_FULL", "SQLITE_IOERR")):
            why = f"the disk does not take it: {error}"
            return FullError(why, where=where, fix="make room; what was there before is whole")
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            return GymError(f"the {what} is damaged: {error}", where=where, fix="put back a copy of it")
        fix = "let this user write to the folder: whoever reads it writes there"
        return GymError(f"the {what} cannot be used: {error}", where=where, fix=fix)

"""The file of a ledger: SQLite in WAL mode, where a change is there in whole or not at all, also after `kill -9`."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from gym_core import BusyError, GymError
from gym_core.files import BUILDING, remove, to_disk

NAME = "ledger.sqlite"
LAYOUT = 2
WAIT = 60.0  #: seconds that a writer waits for another one
SCHEMA = f"""
PRAGMA journal_mode = WAL;
PRAGMA user_version = {LAYOUT};
CREATE TABLE identity (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE events (number INTEGER PRIMARY KEY, round INTEGER NOT NULL, body TEXT NOT NULL, hash TEXT NOT NULL);
CREATE TRIGGER no_update BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'events are only appended'); END;
CREATE TRIGGER no_delete BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'events are only appended'); END;
CREATE TABLE rounds (number INTEGER PRIMARY KEY, opened REAL NOT NULL, state TEXT NOT NULL DEFAULT 'open');
CREATE TABLE members (
  name TEXT PRIMARY KEY, key TEXT UNIQUE, identity TEXT UNIQUE, round INTEGER NOT NULL, reputation REAL NOT NULL DEFAULT 0);
CREATE TABLE invites (code TEXT PRIMARY KEY, member TEXT);
CREATE TABLE contributions (
  round INTEGER NOT NULL, member TEXT NOT NULL, content TEXT NOT NULL, size INTEGER NOT NULL, kind TEXT NOT NULL,
  details TEXT NOT NULL, event INTEGER NOT NULL UNIQUE, passed INTEGER,
  PRIMARY KEY (round, member), UNIQUE (round, content));
CREATE INDEX contributions_of ON contributions (content);
CREATE TABLE refusals (round INTEGER NOT NULL, member TEXT NOT NULL, why TEXT NOT NULL);
CREATE INDEX refusals_of ON refusals (round, member);
CREATE TABLE uploads (
  token TEXT PRIMARY KEY, round INTEGER NOT NULL, member TEXT NOT NULL, content TEXT NOT NULL, size INTEGER NOT NULL,
  received INTEGER NOT NULL, manifest TEXT NOT NULL, touched REAL NOT NULL, UNIQUE (round, member));
CREATE TABLE secure_rounds (round INTEGER PRIMARY KEY, step TEXT NOT NULL, ends REAL NOT NULL, teams TEXT NOT NULL);
CREATE TABLE secure_said (
  round INTEGER NOT NULL, member TEXT NOT NULL, step TEXT NOT NULL, said TEXT NOT NULL, PRIMARY KEY (round, member, step));
"""


class Database:
    """The rows. Threads take turns; a forked process has a connection of its own."""

    def __init__(self, folder: Path) -> None:
        """Open the file in a folder, which is made where there is none. Raises GymError where it cannot be used."""
        self.path = folder / NAME
        self._turn = threading.RLock()
        self._connections: dict[int, sqlite3.Connection] = {}
        if not self.path.exists():
            self._create(folder)
        with self.reading() as connection:
            (layout,) = connection.execute("PRAGMA user_version").fetchone()
        if layout != LAYOUT:
            why = f"this ledger has layout {layout}, and this version reads layout {LAYOUT}"
            raise GymError(why, where=str(self.path), fix="use the version of gym-deltasoup that wrote it")

    def close(self) -> None:
        """Close the connection of this process."""
        with self._turn:
            connection = self._connections.pop(os.getpid(), None)
            if connection is not None:
                connection.close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Give a connection. Raises GymError for whatever is wrong with the file or the disk."""
        with self._turn:
            try:
                yield self._connection()
            except sqlite3.Error as error:
                raise self._told(error) from error

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Give a connection that alone may write: what the block changes is on the disk when it ends, or nothing is."""
        with self.reading() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    def _connection(self) -> sqlite3.Connection:
        """Return the connection of this process; that of the process it was forked from is never touched."""
        if os.getpid() not in self._connections:
            existing = f"{self.path.absolute().as_uri()}?mode=rw"
            made = sqlite3.connect(existing, WAIT, isolation_level=None, check_same_thread=False, uri=True)
            self._connections[os.getpid()] = made
            made.execute("PRAGMA synchronous = FULL")
        return self._connections[os.getpid()]

    def _create(self, folder: Path) -> None:
        building = self.path.with_name(f".{NAME}.{os.getpid()}-{token_hex(4)}{BUILDING}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            made = sqlite3.connect(building, isolation_level=None)
            try:
                made.executescript(SCHEMA)
                made.execute("INSERT INTO identity VALUES ('server', ?)", (token_hex(16),))
            finally:
                made.close()
            to_disk(building)
            with suppress(FileExistsError):  # another process was first, and may have written to it
                self.path.hardlink_to(building)
        except (OSError, sqlite3.Error) as error:
            fix = "choose a folder on a local disk that has hard links"
            raise GymError(f"no ledger can be made here: {error}", where=str(folder), fix=fix) from error
        finally:
            remove(building)

    def _told(self, error: sqlite3.Error) -> GymError:
        """Return an error of SQLite as one that a user can act on."""
        name = getattr(error, "sqlite_errorname", "SQLITE_CORRUPT")
        where = str(self.path)
        if name.startswith("SQLITE_BUSY"):
            return BusyError(f"others have been writing for {WAIT:.0f} seconds", where=where, fix="try again")
        if name.startswith(("SQLITE_FULL", "SQLITE_IOERR")):
            return FullError(
                f"the disk does not take it: {error}", where=where, fix="make room; what was there is whole"
            )
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            return GymError(f"the ledger is damaged: {error}", where=where, fix="put back a copy of it")
        return GymError(f"the ledger cannot be used: {error}", where=where)


class FullError(GymError):
    """The disk takes no more."""

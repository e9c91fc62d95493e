"""What each contributor has spent, over all rounds: a file that is right after `kill -9`, and refuses what is above a cap."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path

from gym_core import GymError
from gym_deltasoup.gaussian_mechanism import composed, epsilon_of

WAIT = 60.0  #: seconds that a writer waits for another one
LAYOUT = 1
SCHEMA = """
CREATE TABLE IF NOT EXISTS spent (
  member TEXT NOT NULL, release TEXT NOT NULL, mu REAL NOT NULL CHECK (mu > 0), PRIMARY KEY (member, release));
"""


class PrivacyLedger:
    """Accounts of contributors. Every release that one took part in has its `mu` (see `gym_deltasoup.gaussian_mechanism`).

    Args:
        path: the file; it is made where there is none.
        delta: at which epsilon is counted.
        cap: most epsilon of a contributor over all releases; None where there is no end to it.

    """

    def __init__(self, path: Path, delta: float = 1e-5, cap: float | None = None) -> None:
        """Open or make the file. Raises GymError where it cannot be used."""
        self.path, self.delta, self.cap = path, delta, inf if cap is None else cap
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._writing() as rows:
            (layout,) = rows.execute("PRAGMA user_version").fetchone()
            if layout not in (0, LAYOUT):
                raise GymError(f"this privacy ledger has layout {layout}, not {LAYOUT}", where=str(path))
            rows.execute(SCHEMA)
            rows.execute(f"PRAGMA user_version = {LAYOUT}")

    def admit(self, release: str, members: Sequence[str], mu: float) -> None:
        """Raise GymError for the first contributor whose cap a release of this `mu` would exceed. Nothing is written."""
        with self._writing() as rows:
            self._checked(rows, release, members, mu)

    def spend(self, release: str, members: Sequence[str], mu: float) -> dict[str, float]:
        """Write down a release, on the disk when this returns, and return the epsilon that each contributor has spent by now.

        To be called before anybody sees the release. All are charged, or nobody where it raises. The same release costs nothing
        a second time: who was killed calls it again. Raises GymError where a cap would be exceeded.
        """
        with self._writing() as rows:
            found = self._checked(rows, release, members, mu)
            new = [(member, release, mu) for member in members]
            rows.executemany("INSERT OR IGNORE INTO spent VALUES (?, ?, ?)", new)
        return found

    def spent(self, member: str) -> float:
        """Return the epsilon of a contributor over all releases."""
        with self._connected() as rows:
            return epsilon_of(composed(mu for _, mu in _of(rows, member)), self.delta)

    def _checked(self, rows: sqlite3.Connection, release: str, members: Sequence[str], mu: float) -> dict[str, float]:
        found: dict[str, float] = {}
        known: dict[float, float] = {}  # most contributors have taken part in the same rounds
        for member in members:
            before = dict(_of(rows, member))
            if before.setdefault(release, mu) != mu:
                why = f"{member} is charged for {release} already, with another noise"
                raise GymError(why, where=str(self.path), fix="give each release a name of its own")
            total = composed(before.values())
            if total not in known:
                known[total] = epsilon_of(total, self.delta)
            found[member] = known[total]
            if found[member] > self.cap:
                left = epsilon_of(composed(value for name, value in before.items() if name != release), self.delta)
                raise GymError(
                    f"{member} has spent an epsilon of {left:.4g}, and would have {found[member]:.4g} after {release}: "
                    f"the cap is {self.cap:.4g}",
                    where=str(self.path),
                    fix="leave this contribution out, or add more noise",
                )
        return found

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._connected() as rows:
            rows.execute("BEGIN IMMEDIATE")
            try:
                yield rows
            except BaseException:
                rows.execute("ROLLBACK")
                raise
            rows.execute("COMMIT")

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """Give a connection of its own, so that threads and forked processes share none."""
        try:
            rows = sqlite3.connect(self.path, WAIT, isolation_level=None)
            try:
                rows.execute("PRAGMA synchronous = EXTRA")
                yield rows
            finally:
                rows.close()
        except sqlite3.Error as error:
            why = f"the privacy ledger cannot be used: {error}"
            raise GymError(why, where=str(self.path), fix="nothing is released without it: see to the file") from error


def _of(rows: sqlite3.Connection, member: str) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = rows.execute(
        "SELECT release, mu FROM spent WHERE member = ?", (member,)
    ).fetchall()
    return found

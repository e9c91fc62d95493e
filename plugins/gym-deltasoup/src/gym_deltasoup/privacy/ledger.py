"""What each contributor has spent, over all rounds: a file that is right after `kill -9`, and refuses what is above a cap."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import inf, prod
from pathlib import Path
from secrets import token_hex

from gym_core import GymError
from gym_deltasoup.gaussian_mechanism import composed, epsilon_of

WAIT = 60.0  #: seconds that a writer waits for another one
ROUNDING = 1e-12  #: of an epsilon: a release of just the cap is within it
LAYOUT = 2
SCHEMA = """
CREATE TABLE IF NOT EXISTS spent (
  member TEXT NOT NULL, release TEXT NOT NULL, mu REAL NOT NULL CHECK (mu > 0), slack REAL NOT NULL,
  PRIMARY KEY (member, release));
"""

Cost = tuple[float, float]
"""`mu`, and the probability with which a release may be worse."""


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

    def admit(self, release: str, members: Sequence[str], mu: float, slack: float = 0.0) -> None:
        """Raise GymError for the first contributor whose cap a release of this `mu` would exceed. Nothing is written."""
        with self._writing() as rows:
            self._checked(rows, release, members, (mu, slack))

    def spend(self, release: str, members: Sequence[str], mu: float, slack: float = 0.0) -> dict[str, float]:
        """Write down a release, on the disk when this returns, and return the epsilon that each contributor has spent by now.

        To be called before anybody sees the release. All are charged, or nobody where it raises. The same release costs nothing
        a second time: who was killed calls it again. `slack` is the probability with which it may be worse than `mu`, which is
        taken from delta. Raises GymError where a cap would be exceeded.
        """
        with self._writing() as rows:
            found = self._checked(rows, release, members, (mu, slack))
            new = [(member, release, mu, slack) for member in members]
            rows.executemany("INSERT OR IGNORE INTO spent VALUES (?, ?, ?, ?)", new)
        return found

    def spend_anew(self, what: str, member: str, mu: float, slack: float = 0.0) -> float:
        """Write down a release with noise of its own, which costs anew each time, and return what the member has spent by now.

        To be called before anybody sees it, once for each drawing of noise: two drawings for one change tell more than one does.
        Raises what `spend` raises.
        """
        self.admit(what, [member], mu, slack)  # whose refusal tells the name alone
        return self.spend(f"{what} {token_hex(8)}", [member], mu, slack)[member]

    def spent(self, member: str) -> float:
        """Return the epsilon of a contributor over all releases."""
        with self._connected() as rows:
            return self._epsilon(_of(rows, member).values())

    def charged(self, release: str) -> set[str]:
        """Return who was charged for a release."""
        with self._connected() as rows:
            return {member for (member,) in rows.execute("SELECT member FROM spent WHERE release = ?", (release,))}

    def _epsilon(self, costs: Iterable[Cost]) -> float:
        """Return what releases cost together: `1 - delta` is what is left of it after each slack."""
        held = list(costs)
        delta = (
            1 - (1 - self.delta) / prod(1 - slack for _, slack in held)
            if any(slack for _, slack in held)
            else self.delta
        )
        return epsilon_of(composed(mu for mu, _ in held), delta) if delta > 0 else inf

    def _checked(self, rows: sqlite3.Connection, release: str, members: Sequence[str], cost: Cost) -> dict[str, float]:
        found: dict[str, float] = {}
        known: dict[tuple[Cost, ...], float] = {}  # most contributors have taken part in the same rounds
        for member in members:
            before = _of(rows, member)
            if before.setdefault(release, cost) != cost:
                why = f"{member} is charged for {release} already, with another noise"
                raise GymError(why, where=str(self.path), fix="give each release a name of its own")
            total = tuple(sorted(before.values()))
            if total not in known:
                known[total] = self._epsilon(total)
            found[member] = known[total]
            if found[member] > self.cap * (1 + ROUNDING) or found[member] == inf:
                left = self._epsilon(value for name, value in before.items() if name != release)
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


def _of(rows: sqlite3.Connection, member: str) -> dict[str, Cost]:
    """Return what each release cost a member."""
    found = rows.execute("SELECT release, mu, slack FROM spent WHERE member = ?", (member,))
    return {release: (mu, slack) for release, mu, slack in found}

"""What calls cost: each reserves the most that it can before it is sent, so that a cap is never passed.

A call whose reply never came, or says not what it used, stays in the ledger with all that it had reserved: the server may have
counted it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from gym_core.errors import GymError


@dataclass(frozen=True)
class Usage:
    """Tokens of calls."""

    input: int = 0
    output: int = 0
    cached: int = 0  #: of `input`

    @property
    def total(self) -> int:
        """Tokens in both directions."""
        return self.input + self.output

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.input + other.input, self.output + other.output, self.cached + other.cached)


@dataclass(frozen=True)
class Charge:
    """What calls used, and what that costs in US dollars."""

    usage: Usage = Usage()
    cost: float = 0.0
    calls: int = 0

    def __add__(self, other: Charge) -> Charge:
        return Charge(self.usage + other.usage, self.cost + other.cost, self.calls + other.calls)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Charge:
        """Return what `to_json` gave."""
        return cls(Usage(**found["usage"]), found["cost"], found["calls"])


def dollars(cost: float, unpriced: Collection[str]) -> str:
    """Return a sum to show, and whose price is not in it: models of which nobody knows what they cost are not free."""
    known = [f"${cost:.4f}"] if cost or not unpriced else []
    return ", ".join([*known, *(f"price of {name} unknown" for name in sorted(unpriced))])


class CapReached(Exception):
    """The next call might cost more than is left; it was not sent."""


@dataclass
class Reservation:
    """The most that one call can cost, until somebody says what it did."""

    most: Charge
    confirmed: Charge | None = None
    lost: bool = True  #: whether all of it stays in the ledger

    def settle(self, charge: Charge) -> None:
        """Say what the server counted."""
        self.confirmed, self.lost = charge, False

    def free(self) -> None:
        """Say that the server refused the call, and counts nothing."""
        self.lost = False


@dataclass
class Ledger:
    """The account of a run. Threads share it."""

    max_cost: float | None = None  #: US dollars
    max_tokens: int | None = None  #: in both directions
    confirmed: Charge = Charge()  #: what servers said that they counted
    lost: Charge = Charge()  #: the most that calls can have cost of which nobody said
    _flying: Charge = Charge()
    _room: threading.Condition = field(default_factory=threading.Condition)

    @property
    def spent(self) -> Charge:
        """What was spent at most, without the calls that are under way."""
        return self.confirmed + self.lost

    @contextmanager
    def reserve(self, most: Charge) -> Iterator[Reservation]:
        """Hold back the most that a call can cost while the block sends it.

        Waits while other calls are under way that may leave enough. Raises CapReached where none is and there is not enough.
        """
        with self._room:
            while not self._fits(self.spent + self._flying + most):
                if not self._flying.calls or not self._fits(self.spent + most):
                    raise CapReached(self._left())
                self._room.wait()
            self._flying += most
        reservation = Reservation(most)
        try:
            yield reservation
        finally:
            with self._room:
                self._flying += Charge(
                    Usage(-most.usage.input, -most.usage.output, -most.usage.cached), -most.cost, -most.calls
                )
                if not self._flying.calls:
                    self._flying = Charge()  # differences of floats need not end at 0
                if reservation.confirmed is not None:
                    self.confirmed += reservation.confirmed
                elif reservation.lost:
                    self.lost += most
                self._room.notify_all()

    def error(self, reached: CapReached) -> GymError:
        """Return the error for whoever cannot stop before a cap that was reached."""
        key = "max_cost" if self.max_cost is not None else "max_total_tokens"
        return GymError(str(reached), key=key, fix=f"raise `{key}`")

    def _fits(self, charge: Charge) -> bool:
        dear = self.max_cost is not None and charge.cost > self.max_cost + 1e-12
        return not dear and not (self.max_tokens is not None and charge.usage.total > self.max_tokens)

    def _left(self) -> str:
        spent = self.spent
        caps = []
        if self.max_cost is not None:
            caps.append(f"${spent.cost:.4f} of ${self.max_cost:g}")
        if self.max_tokens is not None:
            caps.append(f"{spent.usage.total:,} of {self.max_tokens:,} tokens")
        return f"{' and '.join(caps)} are spent, and the next call might cost more than is left"

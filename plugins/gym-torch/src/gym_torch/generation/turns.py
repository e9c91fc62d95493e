"""Users who want the same thing: whose turn it is, and how much of a queue is theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TypeVar

User = TypeVar("User", bound=Hashable)
REMEMBERED = 4096  #: users of whom it is known when they were served last


class Turns:
    """Users who wait are served in turns, and what one user waits for in the order in which it was asked."""

    def __init__(self) -> None:
        """Begin with nobody served."""
        self._served: dict[Hashable, int] = {}  # the newest last
        self._count = 0

    def order(self, users: Sequence[Hashable]) -> list[int]:
        """Return the places of a queue, each of which is a user's, in the order in which they are to be served."""
        before: Counter[Hashable] = Counter()
        keys = []
        for user in users:
            keys.append((before[user], self._served.get(user, -1)))
            before[user] += 1
        return sorted(range(len(users)), key=keys.__getitem__)

    def took(self, user: Hashable) -> None:
        """Note that a user was served."""
        self._served.pop(user, None)
        if len(self._served) >= REMEMBERED:
            del self._served[next(iter(self._served))]
        self._count += 1
        self._served[user] = self._count


def has_room(held: Counter[User], wanted: Counter[User], most: int) -> bool:
    """Whether users may have more places, by what each holds and wants.

    Of what is full, a user still gets an equal share: nobody is kept out by what another one asked for before.
    """
    if held.total() + wanted.total() <= most:
        return True
    share = most // len(held | wanted)
    return all(held[user] + count <= share for user, count in wanted.items())

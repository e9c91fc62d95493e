"""Calls of foreign code side by side, each in a thread of its own, and none of them for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")

LOOK = 0.5  #: seconds after which it is looked who takes how long


class TookTooLongError(Exception):
    """A call that was not done in time; `place` says which."""

    def __init__(self, place: int) -> None:
        """Take its place in what was given."""
        super().__init__(place)
        self.place = place


def side_by_side(call: Callable[[Item], Made], items: Sequence[Item], threads: int, timeout: float) -> list[Made]:
    """Return what a call makes of each item, in order; `timeout` is the seconds of one call.

    Raises what a call raises, and TookTooLongError. Nobody waits for calls that are still under way then, neither here nor where
    the process ends.
    """
    done: SimpleQueue[tuple[int, Made | None, BaseException | None]] = SimpleQueue()
    waiting, begun, over = list(enumerate(items))[::-1], dict[int, float](), threading.Event()

    def work() -> None:
        while waiting and not over.is_set():
            try:
                place, item = waiting.pop()
            except IndexError:  # another thread took the last one
                return
            begun[place] = monotonic()
            try:
                done.put((place, call(item), None))
            except BaseException as error:  # what ends a thread would be lost
                done.put((place, None, error))

    for _ in range(min(threads, len(items))):
        threading.Thread(target=work, daemon=True).start()
    made: dict[int, Made] = {}
    try:
        while len(made) < len(items):
            try:
                place, found, error = done.get(timeout=min(LOOK, timeout))
            except Empty:
                late = (at for at, since in list(begun.items()) if at not in made and monotonic() - since > timeout)
                if (place := next(late, -1)) >= 0:
                    raise TookTooLongError(place) from None
                continue
            if error is not None:
                raise error
            made[place] = found  # type: ignore[assignment]  # there is one where there is no error
    finally:
        over.set()
    return [made[place] for place in range(len(items))]

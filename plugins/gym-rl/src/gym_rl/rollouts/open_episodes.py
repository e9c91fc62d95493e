"""Episodes that are not over yet: each is closed once, in whatever way it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from gym_core import GymError
from gym_rl.environment import Closes, Episode, closes
from gym_rl.rollouts.side_by_side import TookTooLongError, side_by_side

Close = Callable[[str, Callable[[], object]], object]
"""From the row of an episode and its `close` to what that returns; raises GymError with the row where it fails."""


class OpenEpisodes:
    """Those of one request."""

    def __init__(self, close: Close, threads: int, timeout: float) -> None:
        """Take what closes one, how many are closed side by side, and the seconds that one may take."""
        self._close, self._threads, self._timeout = close, threads, timeout
        self._lock, self._over = threading.Lock(), False
        self._open: dict[int, tuple[str, Closes]] = {}  #: by the identity of the episode, with its row

    def begun(self, row: str, episode: Episode) -> None:
        """Take one. Where all are over, because another could not begin, it is closed at once."""
        if not closes(episode):
            return
        with self._lock:
            self._open[id(episode)] = row, episode
            late = self._over
        if late:
            with suppress(GymError):  # nobody waits for it any more
                self._one(id(episode))

    def over(self, episodes: Sequence[Episode]) -> GymError | None:
        """Close some, each once; return the first error of them, after all were told."""
        return self._all([id(each) for each in episodes])

    def end(self) -> GymError | None:
        """Close those that are left, and any that begins later; return the first error of them, after all were told."""
        with self._lock:
            self._over, left = True, [*self._open]
        return self._all(left)

    def _all(self, numbers: Sequence[int]) -> GymError | None:
        failed: list[GymError] = []
        while left := [number for number in numbers if number in self._open]:
            rows = [self._open[number][0] for number in left]
            try:
                made = side_by_side(self._caught, left, self._threads, self._timeout)
                failed += [error for error in made if error is not None]
            except TookTooLongError as late:
                why = f"the environment was not closed after {self._timeout:g} seconds"
                failed.append(GymError(why, where=f"row {rows[late.place]}", fix="have its `close` give up earlier"))
        return next(iter(failed), None)

    def _caught(self, number: int) -> GymError | None:
        try:
            self._one(number)
        except GymError as error:
            return error
        return None

    def _one(self, number: int) -> None:
        with self._lock:
            found = self._open.pop(number, None)
        if found is not None:
            row, episode = found
            self._close(row, episode.close)

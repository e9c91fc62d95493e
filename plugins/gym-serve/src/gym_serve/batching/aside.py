"""What takes a while, beside the event loop: prompts are laid out, tenants read, and whole texts computed in parts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from gym_core import GymError
from gym_serve.errors import BadRequest, Gone, RequestError
from gym_torch.generation.turns import Turns

WORKERS = 4  #: requests that are prepared at a time: laid out, compiled, and their tenants read
AGAIN = 0.02  #: seconds until a tenant is tried again that had no room beside those in use
PART = 16  #: texts that are scored or embedded before those of another request get their turn
Given = TypeVar("Given")
Found = TypeVar("Found")


class CrowdedError(GymError):
    """A tenant has no room beside those in use: it is tried again while others are at work."""

    beside_others = False  #: whether another held its tenant at some time during the try


class TurnPool:
    """Threads for which users take turns."""

    def __init__(self, workers: int, name: str) -> None:
        """Start them."""
        self._threads, self._lock, self._turns = ThreadPoolExecutor(workers, name), threading.Lock(), Turns()
        self._waiting: list[tuple[Hashable, Future[Any], Callable[[], Any]]] = []

    def submit(self, user: Hashable, function: Callable[[], Found]) -> Future[Found]:
        """Return what will be the result of a function."""
        found: Future[Found] = Future()
        with self._lock:
            self._threads.submit(self._next)  # which need not run this one: the others that wait have their turns
            self._waiting.append((user, found, function))
        return found

    def close(self) -> None:
        """Begin nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for _, found, _ in self._waiting:
                found.cancel()
            self._waiting.clear()

    def _next(self) -> None:
        with self._lock:
            if not self._waiting:  # it is closed
                return
            user, found, function = self._waiting.pop(self._turns.order([user for user, *_ in self._waiting])[0])
            self._turns.took(user)
        if not found.set_running_or_notify_cancel():
            return
        try:
            found.set_result(function())
        except BaseException as error:
            found.set_exception(error)


class Aside:
    """Threads for what takes a while."""

    def __init__(self) -> None:
        """Start them."""
        self._preparing = TurnPool(WORKERS, "preparing")
        self._computing = TurnPool(1, "computing")  # whole texts, for which no request waits to be prepared
        self._holding: set[object] = set()  # one for each answer that has a tenant, or is about to
        self._ended = 0  # times that one let go; of two at once only one may count
        self._closed = False

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Say in the block that a tenant is in use, for which others may wait."""
        hold, before = object(), self._ended
        self._holding.add(hold)
        try:
            yield
        except CrowdedError as error:  # those who leave from now on have left room for the next try
            error.beside_others = len(self._holding) > 1 or self._ended != before
            raise
        finally:
            self._ended += 1
            self._holding.discard(hold)

    async def in_parts(
        self, given: Sequence[Given], computed: Callable[[Sequence[Given]], Sequence[Found]], user: Hashable
    ) -> list[Found]:
        """Compute some of many texts at a time: others get their turns in between, and what nobody waits for is left out."""
        found: list[Found] = []
        for at in range(0, len(given), PART):
            found += await self.run(partial(computed, given[at : at + PART]), pool=self._computing, user=user)
        return found

    async def run(
        self,
        function: Callable[[], Found],
        unread: Callable[[Found], None] = lambda found: None,
        pool: TurnPool | None = None,
        user: Hashable = None,
    ) -> Found:
        """Run what takes a while beside the event loop. What is wrong with a tenant or a prompt is an error of the request.

        What has no room for its tenant waits while others hold theirs. Where nobody waits any more, `unread` is given what was
        found.
        """
        while not self._closed:
            running = (pool or self._preparing).submit(user, function)
            try:
                return await asyncio.wrap_future(running)
            except asyncio.CancelledError:
                running.add_done_callback(lambda done: _given_up(done, unread))
                raise
            except RequestError:
                raise
            except CrowdedError as error:
                if not error.beside_others:
                    raise _of_request(error) from error
                await asyncio.sleep(AGAIN)
            except GymError as error:
                raise _of_request(error) from error
        raise Gone("the engine is closed")

    def refuse(self) -> None:
        """Take nothing more."""
        self._closed = True

    def close(self) -> None:
        """Let the threads go."""
        for pool in (self._preparing, self._computing):
            pool.close()


def _of_request(error: GymError) -> BadRequest:
    return BadRequest(error.problems[0].why, key=error.problems[0].key or "model")


def _given_up(done: Future[Found], unread: Callable[[Found], None]) -> None:
    if not done.cancelled() and done.exception() is None:
        unread(done.result())

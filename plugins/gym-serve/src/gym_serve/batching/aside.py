"""What takes a while, beside the event loop: prompts are laid out, tenants read, and whole texts computed in parts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from gym_core import GymError
from gym_serve.errors import BadRequest, Gone, RequestError

WORKERS = 4  #: requests that are prepared at a time: laid out, compiled, and their tenants read
AGAIN = 0.02  #: seconds until a tenant is tried again that had no room beside those in use
PART = 16  #: texts that are scored or embedded before those of another request get their turn
Given = TypeVar("Given")
Found = TypeVar("Found")


class CrowdedError(GymError):
    """A tenant has no room beside those in use: it is tried again while others are at work."""


class Aside:
    """Threads for what takes a while."""

    def __init__(self) -> None:
        """Start them."""
        self._preparing = ThreadPoolExecutor(WORKERS, "preparing")
        self._computing = ThreadPoolExecutor(1, "computing")  # whole texts, for which no request waits to be prepared
        self._holding: set[object] = set()  # one for each answer that has a tenant, or is about to
        self._closed = False

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Say in the block that a tenant is in use, for which others may wait."""
        hold = object()
        self._holding.add(hold)
        try:
            yield
        finally:
            self._holding.discard(hold)

    async def in_parts(
        self, given: Sequence[Given], computed: Callable[[Sequence[Given]], Sequence[Found]]
    ) -> list[Found]:
        """Compute some of many texts at a time: others get their turns in between, and what nobody waits for is left out."""
        found: list[Found] = []
        for at in range(0, len(given), PART):
            found += await self.run(partial(computed, given[at : at + PART]), pool=self._computing)
        return found

    async def run(
        self,
        function: Callable[[], Found],
        unread: Callable[[Found], None] = lambda found: None,
        pool: ThreadPoolExecutor | None = None,
    ) -> Found:
        """Run what takes a while beside the event loop. What is wrong with a tenant or a prompt is an error of the request.

        What has no room for its tenant waits while others hold theirs. Where nobody waits any more, `unread` is given what was
        found.
        """
        while not self._closed:
            others = bool(self._holding)  # one that ends during a try leaves room for the next
            running = (pool or self._preparing).submit(function)
            try:
                return await asyncio.wrap_future(running)
            except asyncio.CancelledError:
                running.add_done_callback(lambda done: _given_up(done, unread))
                raise
            except RequestError:
                raise
            except CrowdedError as error:
                if not (others or self._holding):
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
            pool.shutdown(wait=False, cancel_futures=True)


def _of_request(error: GymError) -> BadRequest:
    return BadRequest(error.problems[0].why, key=error.problems[0].key or "model")


def _given_up(done: Future[Found], unread: Callable[[Found], None]) -> None:
    if not done.cancelled() and done.exception() is None:
        unread(done.result())

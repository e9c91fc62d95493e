"""Functions of the user may be coroutines. All of them run in one event loop, which lasts as long as the process.

What they keep from call to call, such as a client with its connections or a lock, belongs to the loop that it was first used in:
in another one it fails.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable
from functools import cache
from typing import Any

_once = threading.Lock()  #: many threads may want the loop at the same time


def settled(made: Any) -> Any:
    """Return what a call returned, or what comes of it where it is to be awaited. Raises what that raises."""
    if not inspect.isawaitable(made):
        return made
    with _once:
        loop = _loop()
    result, end = asyncio.run_coroutine_threadsafe(_awaited(made), loop).result()
    if end is not None:
        raise end
    return result


async def _awaited(made: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    try:
        return await made, None
    except (
        SystemExit,
        KeyboardInterrupt,
    ) as end:  # would end the loop, and whoever waits for others would wait for ever
        return None, end


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="coroutines", daemon=True).start()
    return loop

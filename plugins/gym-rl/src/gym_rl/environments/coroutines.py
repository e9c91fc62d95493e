"""Functions of the user may be coroutines; each is run to its end, in a loop of its own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import Any


def settled(made: Any) -> Any:
    """Return what a call returned, or what comes of it where it is to be awaited."""
    return asyncio.run(_awaited(made)) if inspect.isawaitable(made) else made


async def _awaited(made: Awaitable[Any]) -> Any:
    return await made

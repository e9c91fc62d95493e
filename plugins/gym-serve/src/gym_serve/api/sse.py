"""Server-sent events: a reply as it is made."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gym_serve.api import errors
from gym_serve.errors import RequestError

LOG = logging.getLogger(__name__)
Line = tuple[str | None, dict[str, Any]]  #: name of the event, and its data


class EventStream(Response):
    """Sends events as they come; what goes wrong on the way is the last event."""

    media_type = "text/event-stream"

    def __init__(self, lines: AsyncGenerator[Line, None], done: str | None = "[DONE]") -> None:
        """Take the events, and what is sent behind them as data."""
        super().__init__()
        del self.headers["content-length"]
        self._lines, self._done = lines, done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events; those still to come are cancelled where this is."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})

        async def part(data: str, name: str | None = None) -> None:
            text = f"event: {name}\n" * (name is not None) + f"data: {data}\n\n"
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})

        async with aclosing(self._lines) as lines:
            try:
                async for name, data in lines:
                    await part(json.dumps(data, ensure_ascii=False, separators=(",", ":")), name)
                if self._done is not None:
                    await part(self._done)
            except Exception as error:  # the status is sent: whatever it is, the client learns of it here
                if not isinstance(error, RequestError):
                    LOG.exception("a stream broke off")
                told = error if isinstance(error, RequestError) else RequestError("the server failed on this request")
                await part(json.dumps(errors.body_of(told, scope["path"])), "error" if self._done is None else None)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def begun(lines: AsyncGenerator[Line, None]) -> AsyncGenerator[Line, None]:
    """Return the events once the first is there, so that a request that is refused gets a status of its own."""
    try:
        first = await anext(lines)
    except BaseException:
        await lines.aclose()
        raise

    async def all_of() -> AsyncGenerator[Line, None]:
        async with aclosing(lines):
            yield first
            async for line in lines:
                yield line

    return all_of()

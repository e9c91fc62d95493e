"""What every request passes: host, origin, token, size and time of its body; and what happens when the client leaves.

The body is read here, whole and bounded. From then on the connection is watched: a client that leaves, or takes nothing for too
long, ends what is computed for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gym_serve.api import errors
from gym_serve.api.auth import EVERYTHING, Access, Tokens
from gym_serve.api.errors import ONCE, HTTPProblem
from gym_serve.api.hosts import Hosts
from gym_serve.api.options import ApiOptions
from gym_serve.errors import RequestError

OPEN = ("/health", "/v1/health")  #: paths that say nothing of anybody, and need no token
Watch = Callable[[str, int, float], None]  #: path, status and seconds of a request that is over
ACCESS = "access"  #: key of the scope's state: what the client may use
LEFT = 499  #: status of a request whose client left before it was answered


class Gate:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp, options: ApiOptions, tokens: Tokens | None, watch: Watch) -> None:
        """Guard an application; without `tokens` everybody who can connect may ask."""
        self._app, self._options, self._tokens, self._watch = app, options, tokens, watch
        self._hosts = Hosts(options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, status, done = time.monotonic(), LEFT, asyncio.Event()
        origin: str | None = None

        async def told(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *_further(origin)]
            elif not message.get("more_body"):
                done.set()
            await send(message)

        try:
            origin = self._hosts.check(_all(scope, b"host"), _all(scope, b"origin"))
            if scope["method"] == "OPTIONS" and origin:
                await Response(status_code=204)(scope, receive, told)
                return
            scope.setdefault("state", {})[ACCESS] = self._access(scope)
            body = await self._body(scope, receive)
            if body is not None and not await self._run(scope, receive, told, body, done):
                status = LEFT
        except RequestError as error:
            response = errors.response(error, scope["path"])
            response.headers["connection"] = "close"  # the rest of the body is not read
            await response(scope, receive, told)
        finally:
            self._watch(scope["path"], status, time.monotonic() - began)

    def _access(self, scope: Scope) -> Access:
        if self._tokens is None or scope["path"] in OPEN:
            return EVERYTHING
        authorization, key = _all(scope, b"authorization"), _all(scope, b"x-api-key")
        found = self._tokens.access("".join(authorization[:1]), "".join(key[:1]))
        if found is None:
            why = "this server needs a token that it knows: send `Authorization: Bearer TOKEN`"
            raise HTTPProblem(401, why, code="invalid_api_key", headers={"www-authenticate": "Bearer"})
        return found

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """Return the body; None where the client has left. Raises HTTPProblem where it is too large or too slow."""
        most = self._options.max_body_bytes
        said = "".join(_all(scope, b"content-length")[:1])
        large = HTTPProblem(413, f"the body has more than {most} bytes", code="body_too_large")
        if said.isdecimal() and (len(said) > 18 or int(said) > most):
            raise large
        parts, size = [], 0
        try:
            async with asyncio.timeout(self._options.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        raise large
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError as error:
            why = f"the body did not arrive within {self._options.body_seconds:g} s"
            raise HTTPProblem(408, why, code="body_too_slow", headers=ONCE) from error

    async def _run(self, scope: Scope, receive: Receive, send: Send, body: bytes, done: asyncio.Event) -> bool:
        """Run the application on a body that is there; it is cancelled where the client leaves, and False returned."""
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                await asyncio.Event().wait()  # whether the client leaves is watched below
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def left() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        work, watch = asyncio.ensure_future(self._app(scope, replay, send)), asyncio.ensure_future(left())
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            if done.is_set():
                await work
        finally:
            watch.cancel()
            gone = work.cancel()  # which does nothing to what is done
            await asyncio.wait({work, watch})
        if not gone:
            await work
        return not gone


def _all(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def _further(origin: str | None) -> list[tuple[bytes, bytes]]:
    headers = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]
    if origin is not None:
        headers += [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-allow-headers", b"authorization, content-type, x-api-key"),
            (b"access-control-allow-methods", b"GET, POST"),
            (b"vary", b"origin"),
        ]
    return headers

"""The HTTP interface of a community: requests are checked, limited and answered; what they ask for stands elsewhere."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from gym_core import GymError
from gym_core.errors import Problem
from gym_data.database import FullError
from gym_deltasoup.config.server import LOOPBACK, SoupServerConfig
from gym_deltasoup.ledger.hash_chain import Event
from gym_deltasoup.reports.html import page
from gym_deltasoup.rounds.checks import Refused
from gym_deltasoup.rounds.closing import RoundResult, result
from gym_deltasoup.rounds.published import files, piece
from gym_deltasoup.rounds.round_report import for_all
from gym_deltasoup.server.rate_limits import RateLimits
from gym_deltasoup.server.requests import Forbidden, Malformed
from gym_deltasoup.server.service import Service
from gym_deltasoup.server.uploads import Conflict, Unknown, Upload

JSON_BYTES = 1 << 16  #: of a request that is no part of an upload
WORKERS = 8  #: threads that write and check; what waits for one holds no thread
#: What a request is answered where something raised this; the first that fits counts.
STATUSES: tuple[tuple[type[GymError], int], ...] = (
    (Malformed, 400),
    (Forbidden, 403),
    (Unknown, 404),
    (Conflict, 409),
    (Refused, 422),
    (FullError, 507),
    (GymError, 503),
)

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]


class Answered(Exception):
    """A request that is answered without looking further at it."""

    def __init__(self, status: int, why: str, headers: Mapping[str, str] | None = None) -> None:
        """Hold the answer."""
        super().__init__(why)
        self.status, self.why, self.headers = status, why, dict(headers or {})


class SoupApp:
    """Answers requests. Blocking work is done in a few threads, the event loop stays free."""

    def __init__(self, service: Service, config: SoupServerConfig, token: str) -> None:
        """Serve a community; an empty token lets everybody ask."""
        self.service, self.config, self.limits, self.token = service, config, config.limits, token
        #: By which it is called; None where a token is asked for.
        self.names = LOOPBACK if config.host in LOOPBACK else None
        self.rates = RateLimits(config.limits.requests_per_second, config.limits.burst)
        self.workers = CapacityLimiter(WORKERS)
        routes: list[tuple[str, str, Handler]] = [
            ("GET", "/v1/server", self.server),
            ("POST", "/v1/members", self.enrol),
            ("GET", "/v1/members/{member}", self.member),
            ("POST", "/v1/contributions", self.begin),
            ("GET", "/v1/uploads/{token}", self.upload),
            ("PATCH", "/v1/uploads/{token}", self.add),
            ("POST", "/v1/uploads/{token}/finish", self.finish),
            ("POST", "/v1/secure", self.say),
            ("GET", "/v1/secure/{member}", self.secure),
            ("GET", "/v1/rounds/{number}/report", self.report),
            ("GET", "/v1/rounds/{number}/report.html", self.report_page),
            ("GET", "/v1/rounds/{number}/model/{name}", self.model),
            ("GET", "/v1/ledger", self.ledger),
        ]
        self.asgi = Starlette(
            routes=[Route(path, self._guarded(handler), methods=[method]) for method, path, handler in routes]
        )

    async def server(self, request: Request) -> Response:
        """Tell of the community, its base and its round."""
        return JSONResponse(await self._work(self.service.told))

    async def enrol(self, request: Request) -> Response:
        """Make somebody a member."""
        body = await self._body(request, JSON_BYTES)
        return JSONResponse(await self._work(lambda: self.service.enrol(body)), 201)

    async def member(self, request: Request) -> Response:
        """Tell what is known of a member."""
        name = request.path_params["member"]
        return JSONResponse(await self._work(lambda: self.service.member(name)))

    async def begin(self, request: Request) -> Response:
        """Begin an upload, or say where it goes on."""
        body = await self._body(request, JSON_BYTES)
        return _started(await self._work(lambda: self.service.begin(body)))

    async def upload(self, request: Request) -> Response:
        """Say where an upload goes on."""
        token = request.path_params["token"]
        return _started(await self._work(lambda: self.service.uploads.find(token)))

    async def add(self, request: Request) -> Response:
        """Take a part of an upload, whole and with its hash (RFC 9530), or not at all."""
        token, offset = request.path_params["token"], request.headers.get("upload-offset", "")
        if not _is_number(offset):
            raise Answered(400, "`Upload-Offset` is no number")
        await self._work(lambda: self.service.uploads.find(token))
        part = await self._body(request, self.limits.chunk_bytes)
        wanted = base64.b64encode(hashlib.sha256(part).digest()).decode()
        if request.headers.get("content-digest") != f"sha-256=:{wanted}:":
            raise Answered(400, "`Content-Digest` is not that of the body")
        return _started(await self._work(lambda: self.service.uploads.add(token, int(offset), part)))

    async def finish(self, request: Request) -> Response:
        """Accept what was uploaded."""
        token = request.path_params["token"]
        return _started(await self._work(lambda: self.service.uploads.finish(token)))

    async def say(self, request: Request) -> Response:
        """Take what a member says in a step of secure aggregation."""
        body = await self._body(request, JSON_BYTES)
        return JSONResponse(await self._work(lambda: self.service.secure_rounds().take(body)))

    async def secure(self, request: Request) -> Response:
        """Tell a member what the step of secure aggregation asks for."""
        member = request.path_params["member"]
        return JSONResponse(await self._work(lambda: self.service.secure_rounds().state(member)))

    async def report(self, request: Request) -> Response:
        """Give the report of a round."""
        return JSONResponse(await self._work(lambda: self._report(request)))

    async def report_page(self, request: Request) -> Response:
        """Give the report of a round as a page."""
        return HTMLResponse(page(await self._work(lambda: self._report(request))))

    async def model(self, request: Request) -> Response:
        """Give a part of a file of what a round made."""
        offset = request.query_params.get("offset", "0")
        if not _is_number(offset):
            raise Answered(400, "`offset` is no number")
        part = await self._work(lambda: self._piece(request, int(offset)))
        return Response(part, media_type="application/octet-stream")

    async def ledger(self, request: Request) -> Response:
        """Give events, a page at a time."""
        after = request.query_params.get("after", "0")
        if not _is_number(after):
            raise Answered(400, "`after` is no number")
        events = await self._work(lambda: self.service.community.ledger.events(int(after)))
        server = self.service.community.server
        return JSONResponse({"server": server, "events": [each._asdict() for each in events]})

    def _report(self, request: Request) -> dict[str, Any]:
        return for_all(self._result(request).report)

    def _piece(self, request: Request, begin: int) -> bytes:
        found = self._result(request)
        path = files(found.artifact.path).get(request.path_params["name"]) if found.is_merged else None
        if path is None:
            raise Unknown("the round made no such file")
        return piece(path, begin)

    def _result(self, request: Request) -> RoundResult:
        number = request.path_params["number"]
        if not _is_number(number):
            raise Unknown("there is no such round")
        try:
            return result(self.service.community, int(number))
        except GymError as error:
            raise Unknown(error.problems) from None

    def _guarded(self, handler: Handler) -> Handler:
        """Return a handler with what holds for all: the token, the rate, and how errors are told."""

        async def guarded(request: Request) -> Response:
            try:
                self._check(request)
                return await handler(request)
            except Answered as error:
                problem = Problem(error.why)
                return JSONResponse({"problems": [problem.to_json()]}, error.status, error.headers)
            except ClientDisconnect:  # in the middle of a body: nothing was kept of it
                return Response(status_code=400)
            except Conflict as error:
                told = {"problems": [each.to_json() for each in error.problems], "received": error.received}
                return JSONResponse(told, 409, {"Upload-Offset": str(error.received)})
            except GymError as error:
                status = next(status for cls, status in STATUSES if isinstance(error, cls))
                problems = [{**each.to_json(), "where": ""} for each in error.problems]  # no paths of this machine
                headers = {"Retry-After": "30"} if status in (503, 507) else None
                return JSONResponse({"problems": problems}, status, headers)

        return guarded

    def _check(self, request: Request) -> None:
        wait = self.rates.wait("" if request.client is None else request.client.host)
        if wait:
            raise Answered(429, "too many requests", {"Retry-After": str(math.ceil(wait))})
        # A page in a browser of this machine may send requests here, and under a name of its own read what is answered.
        if "origin" in request.headers or (self.names and request.url.hostname not in self.names):
            raise Answered(403, "pages of other servers may not ask here")
        shown = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self.token and not hmac.compare_digest(shown.encode(), self.token.encode()):
            raise Answered(401, "the token is not that of this server", {"WWW-Authenticate": "Bearer"})

    async def _body(self, request: Request, most: int) -> bytes:
        """Return the body. It must not be too long, nor come too slowly."""
        said = request.headers.get("content-length", "0")
        if not _is_number(said) or int(said) > most:
            raise Answered(413, f"the body has more than {most:,} bytes", {"Connection": "close"})
        received = bytearray()
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                async for part in request.stream():
                    received += part
                    if len(received) > most:
                        raise Answered(413, f"the body has more than {most:,} bytes", {"Connection": "close"})
        except TimeoutError:
            why = f"the body took more than {self.limits.body_seconds:g} seconds"
            raise Answered(408, why, {"Connection": "close"}) from None
        return bytes(received)

    async def _work(self, call: Callable[[], T]) -> T:
        return await to_thread.run_sync(call, limiter=self.workers)


def _is_number(text: str) -> bool:
    """Return whether a text is a whole number that SQLite counts to."""
    return text.isascii() and text.isdecimal() and len(text) <= 18


def _started(found: Upload | Event) -> Response:
    """Answer where an upload goes on, or with the event that accepted it."""
    if isinstance(found, Event):
        return JSONResponse({"accepted": found._asdict()})
    headers = {"Upload-Offset": str(found.received)}
    return JSONResponse({"upload": found.token, "received": found.received, "size": found.size}, 202, headers)


def text(data: Any) -> bytes:
    """Return plain data as the body of a request."""
    return json.dumps(data).encode()

"""JSON over HTTP with retries, on urllib3: for whoever asks a server. It knows neither rewards nor completions.

urllib3 brings connections, TLS and the policy of retries (`Retry-After`, backoff). What it has no limit for is bounded here: the
time of a whole reply, and its size.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Timer
from typing import Any

from urllib3 import BaseHTTPResponse, HTTPConnectionPool, Retry, connection_from_url
from urllib3.exceptions import HTTPError, InvalidHeader, MaxRetryError, TimeoutError
from urllib3.util import parse_url

_CHUNK = 1 << 16
_AGE = 1e9  #: seconds; nobody waits so long


class NoReply(Exception):
    """No reply came, or only such as may pass, however often the request was sent; the text says why, and how often."""


class TooLarge(Exception):
    """A reply has more bytes than are read; the text says how many."""


@dataclass(frozen=True)
class Reply:
    """What a server said, whatever its status."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class HttpClient:
    """Asks one server. Threads may share it: every request has a connection of its own. Redirects are not followed."""

    url: str
    token: str = field(repr=False)  #: sent as a bearer token; nothing is sent for an empty one; never shown
    timeout: float  #: seconds for one request, to the last byte of the reply
    retries: int  #: times a request is sent again
    backoff: float  #: seconds before the first repetition, twice as long before each further one
    passing: Collection[int]  #: statuses after which a request is sent again, as after a broken connection or a timeout
    largest: int  #: bytes of a reply
    longest_wait: float = 120.0  #: seconds before a repetition, whatever the server asks for (`Retry-After`)

    def send(
        self, method: str, path: str = "", body: str | bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Return the reply to a request. Raises NoReply when there is none to keep, TooLarge for one with too many bytes."""
        retries = _Retry(self.retries, allowed_methods=None, backoff_factor=self.backoff, backoff_max=self.longest_wait)
        while True:
            response: BaseHTTPResponse | None = None
            error: HTTPError | None = None
            try:
                response, content = self._once(method, self.url + path, body, headers or {})
                if response.status not in self.passing:
                    return Reply(response.status, response.headers, content)
                why = f"status {response.status}"
            except HTTPError as caught:
                error, why = caught, str(caught.__cause__ or caught) or type(caught).__name__
            try:
                retries = retries.increment(method, path, response, error)
            except MaxRetryError:
                raise NoReply(f"{why}, {self.retries + 1} times" if self.retries else why) from error
            retries.sleep(response)

    @contextmanager
    def opened(self, method: str, path: str, body: str | bytes | None = None) -> Iterator[BaseHTTPResponse]:
        """Send a request once, and yield its reply, to be read as it comes; leaving breaks it off. Raises NoReply.

        The time is that between two parts of the reply.
        """
        try:
            with (
                connection_from_url(self.url, timeout=self.timeout) as connections,
                self._response(connections, method, self.url + path, body, {"Accept": "text/event-stream"}) as response,
            ):
                yield response
        except HTTPError as error:
            raise NoReply(str(error.__cause__ or error) or type(error).__name__) from error

    @contextmanager
    def _response(
        self,
        connections: HTTPConnectionPool,
        method: str,
        url: str,
        body: str | bytes | None,
        further: Mapping[str, str],
    ) -> Iterator[BaseHTTPResponse]:
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Connection": "close", **further}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        response = connections.urlopen(
            method,
            parse_url(url).request_uri,
            body,
            headers,
            retries=False,
            redirect=False,
            preload_content=False,
            decode_content=False,
        )
        try:
            yield response
        finally:
            response.close()

    def _once(
        self, method: str, url: str, body: str | bytes | None, further: Mapping[str, str]
    ) -> tuple[BaseHTTPResponse, bytes]:
        deadline, received = time.monotonic() + self.timeout, bytearray()
        late = TimeoutError(f"timed out: no whole reply within {self.timeout:g} s")
        try:
            with (
                connection_from_url(url, timeout=self.timeout) as connections,
                _cut(connections, self.timeout),
                self._response(connections, method, url, body, further) as response,
            ):
                while chunk := response.read1(_CHUNK):
                    received += chunk
                    if len(received) > self.largest:
                        raise TooLarge(f"more than {self.largest >> 20} MiB")
                    if time.monotonic() >= deadline:
                        raise late
        except HTTPError:
            if time.monotonic() >= deadline:
                raise late from None
            raise
        if time.monotonic() >= deadline:  # cut off, and a reply without a length looks whole
            raise late
        return response, bytes(received)


@contextmanager
def _cut(connections: HTTPConnectionPool, seconds: float) -> Iterator[None]:
    """Break off what is under way in so many seconds: a timeout of urllib3 is one between two bytes, and a header may drip."""
    sockets: list[socket.socket] = []
    kind: Any = connections.ConnectionCls

    class Watched(kind):  # type: ignore[misc]
        def connect(self) -> None:
            super().connect()
            sockets.append(self.sock)

    def cut() -> None:
        for one in sockets:
            with suppress(OSError):  # it ended by itself
                socket.socket.shutdown(one, socket.SHUT_RDWR)  # below TLS, whose own end waits for the server

    connections.ConnectionCls = Watched
    timer = Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def retry_after(said: str | None) -> float | None:
    """Return the seconds of a header `Retry-After`, in either of its forms; None where there is none, or one without sense."""
    try:
        return float(min(Retry().parse_retry_after(said), _AGE)) if said else None
    except (InvalidHeader, ValueError, OverflowError):  # a number of 5,000 digits, the year 99,999
        return None


class _Retry(Retry):
    """Waits before the first repetition too; `backoff_max` bounds what a server asks for as well."""

    def get_backoff_time(self) -> float:
        times = len(self.history)
        return float(min(self.backoff_max, self.backoff_factor * 2 ** (times - 1))) if times else 0.0

    def get_retry_after(self, response: BaseHTTPResponse) -> float | None:
        seconds = retry_after(response.headers.get("Retry-After"))
        return None if seconds is None else min(seconds, self.backoff_max)

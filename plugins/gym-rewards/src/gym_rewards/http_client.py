"""JSON over HTTP with retries, on urllib3: for whoever asks a server. It knows neither rewards nor completions.

urllib3 brings connections, TLS and the policy of retries (`Retry-After`, backoff). What it has no limit for is bounded here: the
time of a whole reply, and its size.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from urllib3 import BaseHTTPResponse, Retry, connection_from_url
from urllib3.exceptions import HTTPError, InvalidHeader, MaxRetryError, TimeoutError
from urllib3.util import parse_url

_CHUNK = 1 << 16


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
            with self._connected(method, self.url + path, body, {"Accept": "text/event-stream"}) as response:
                yield response
        except HTTPError as error:
            raise NoReply(str(error.__cause__ or error) or type(error).__name__) from error

    @contextmanager
    def _connected(
        self, method: str, url: str, body: str | bytes | None, further: Mapping[str, str]
    ) -> Iterator[BaseHTTPResponse]:
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Connection": "close", **further}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        with connection_from_url(url, timeout=self.timeout) as connections:
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
        with self._connected(method, url, body, further) as response:
            while chunk := response.read1(_CHUNK):
                received += chunk
                if len(received) > self.largest:
                    raise TooLarge(f"more than {self.largest >> 20} MiB")
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no whole reply within {self.timeout:g} s")
        return response, bytes(received)


class _Retry(Retry):
    """Waits before the first repetition too; `backoff_max` bounds what a server asks for as well."""

    def get_backoff_time(self) -> float:
        times = len(self.history)
        return float(min(self.backoff_max, self.backoff_factor * 2 ** (times - 1))) if times else 0.0

    def get_retry_after(self, response: BaseHTTPResponse) -> float | None:
        try:
            seconds = super().get_retry_after(response)
        except InvalidHeader:
            return None
        return None if seconds is None else min(seconds, self.backoff_max)

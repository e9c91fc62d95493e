"""HTTP as vLLM speaks it: JSON in and out, a key, and errors that say what to do. It knows nothing about training."""

from __future__ import annotations

import json
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from gym_core import GymError

_PASSING = frozenset({429, 502, 503, 504})
_LARGEST = 256 * 2**20  #: bytes of a reply
_CHUNK = 1 << 16


class Refused(GymError):
    """The server was reached and did not do what it was asked for."""

    def __init__(self, status: int, why: str, fix: str) -> None:
        """Hold the status of the reply too."""
        super().__init__(why, key="algorithm.rollouts", fix=fix)
        self.status = status


class _Passing(Exception):
    """A failure that may be gone when the request is sent again."""


class Client:
    """Talks to one server. Threads may share it: every request has a connection of its own."""

    def __init__(
        self, url: str, token: str = "", timeout: float = 600.0, retries: int = 2, backoff: float = 1.0
    ) -> None:
        """Take the address, the key, the seconds a request may take, and how often it is sent again after how many seconds."""
        self.url, self.timeout, self.retries, self.backoff = url.rstrip("/"), timeout, retries, backoff
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise GymError(
                f"`{url}` is no address of a server", key="algorithm.rollouts.url", fix="write http://127.0.0.1:8000"
            )
        self._parts = parts
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def get(self, path: str, *keys: str | int) -> Any:
        """Return what the server says, or what stands under these keys in it.

        Raises GymError when the server cannot be reached, Refused when it will not, or says something else.
        """
        return self._under(path, self._ask("GET", path, None), keys)

    def post(self, path: str, content: Any, *keys: str | int) -> Any:
        """Send JSON and return what the server says, None when that is nothing. Raises as `get` does."""
        return self._under(path, self._ask("POST", path, json.dumps(content)), keys)

    def _under(self, path: str, content: Any, keys: tuple[str | int, ...]) -> Any:
        try:
            for key in keys:
                content = content[key]
        except (TypeError, KeyError, IndexError):
            raise Refused(200, f"{self.url}{path} replied without `{key}`", "is it vLLM, and a recent one?") from None
        return content

    def _ask(self, method: str, path: str, body: str | None) -> Any:
        for attempt in range(self.retries + 1):
            if attempt:
                time.sleep(self.backoff * 2 ** (attempt - 1))
            try:
                return self._once(method, path, body)
            except (_Passing, OSError, HTTPException) as error:
                why = str(error) or type(error).__name__
        times = f", {self.retries + 1} times" if self.retries else ""
        raise GymError(
            f"the vLLM server at {self.url} does not answer {path}: {why}{times}",
            key="algorithm.rollouts",
            fix="see that it runs and what it logs, or raise `timeout`; then run the recipe again, and it goes on",
        )

    def _once(self, method: str, path: str, body: str | None) -> Any:
        kind = HTTPSConnection if self._parts.scheme == "https" else HTTPConnection
        deadline = time.monotonic() + self.timeout
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=self.timeout)
        try:
            connection.request(method, self._parts.path + path, body, self._headers)
            reply = connection.getresponse()
            received = bytearray()
            while chunk := reply.read1(_CHUNK):
                received += chunk
                if len(received) > _LARGEST:
                    raise Refused(reply.status, f"{self.url}{path} replied with more than {_LARGEST >> 20} MiB", "")
                if time.monotonic() > deadline:
                    raise _Passing(f"no whole reply within {self.timeout:g} s")
        finally:
            connection.close()
        if reply.status in _PASSING:
            raise _Passing(f"status {reply.status}")
        if reply.status != 200:
            raise Refused(
                reply.status,
                f"{self.url}{path}: status {reply.status}{_said(bytes(received))}",
                _FIXES.get(reply.status, ""),
            )
        try:
            return json.loads(received) if received else None
        except (ValueError, RecursionError):
            raise Refused(
                200, f"{self.url}{path} replied with no JSON: {bytes(received[:100])!r}", "is it vLLM?"
            ) from None


_FIXES = {
    401: "name the environment variable that holds the server's key: `rollouts: {name: vllm, token: VLLM_API_KEY}`",
    404: "start the server with VLLM_SERVER_DEV_MODE=1 in its environment: weights are exchanged by what that adds",
    500: "see what the server logs",
}


def _said(received: bytes) -> str:
    """Return the message of an error, as vLLM's routes write it, on one line."""
    try:
        content = json.loads(received)
    except (ValueError, RecursionError):
        content = received.decode("utf-8", "replace")
    while isinstance(content, dict):
        content = content.get("error") or content.get("message") or content.get("detail") or ""
    text = " ".join(str(content).split())[:300]
    return f", {text}" if text else ""

"""HTTP as vLLM speaks it: JSON in and out, a key, and errors that say what to do. It knows nothing about training."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

from gym_core import GymError
from gym_rewards.http_client import HttpClient, NoReply, TooLarge

_PASSING = frozenset({429, 502, 503, 504})
_LARGEST = 256 * 2**20  #: bytes of a reply


class Refused(GymError):
    """The server was reached and did not do what it was asked for."""

    def __init__(self, status: int, why: str, fix: str) -> None:
        """Hold the status of the reply too."""
        super().__init__(why, key="algorithm.rollouts", fix=fix)
        self.status = status


class Client:
    """Talks to one server. Threads may share it: every request has a connection of its own."""

    def __init__(
        self, url: str, token: str = "", timeout: float = 600.0, retries: int = 2, backoff: float = 1.0
    ) -> None:
        """Take the address, the key, the seconds a request may take, and how often it is sent again after how many seconds."""
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise GymError(
                f"`{url}` is no address of a server", key="algorithm.rollouts.url", fix="write http://127.0.0.1:8000"
            )
        self._http = HttpClient(self.url, token, timeout, retries, backoff, _PASSING, _LARGEST)

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
        try:
            reply = self._http.send(method, path, body)
        except NoReply as error:
            raise GymError(
                f"the vLLM server at {self.url} does not answer {path}: {error}",
                key="algorithm.rollouts",
                fix="see that it runs and what it logs, or raise `timeout`; then run the recipe again, and it goes on",
            ) from error
        except TooLarge as error:
            raise Refused(200, f"{self.url}{path} replied with {error}", "") from error
        if reply.status != 200:
            raise Refused(
                reply.status,
                f"{self.url}{path}: status {reply.status}{_said(reply.body)}",
                _FIXES.get(reply.status, ""),
            )
        try:
            return json.loads(reply.body) if reply.body else None
        except (ValueError, RecursionError):
            raise Refused(200, f"{self.url}{path} replied with no JSON: {reply.body[:100]!r}", "is it vLLM?") from None


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

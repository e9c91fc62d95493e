"""Scores from an endpoint: one POST of JSON for each batch, sent again when the network or the server fails."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from pydantic import Field, PositiveInt

from gym_core.errors import GymError
from gym_rewards.reward import Reward, RewardInput, Seconds

_PASSING = frozenset({429, 500, 502, 503, 504})
_LARGEST = 64 * 2**20  #: bytes of a reply
_CHUNK = 1 << 16


class _Passing(Exception):
    """A failure that may be gone when the request is sent again."""


class Http(Reward):
    """What an endpoint of yours says: it gets JSON by POST and returns `{"scores": [...]}`."""

    target: ClassVar[str] = "gym_rewards.builtin.http_endpoint:HttpScore"

    url: Annotated[str, Field(pattern=r"^https?://", examples=["http://127.0.0.1:8000/score"])]
    """Address; redirects are not followed."""
    token: str = ""
    """Name of an environment variable whose value is sent as a bearer token."""
    batch: PositiveInt = 64
    """Completions in one request."""
    timeout: Seconds = 30.0
    """Seconds for one request, to the last byte of the reply."""
    retries: Annotated[int, Field(ge=0, le=20)] = 3
    """Times a request is sent again after a broken connection, a timeout or status 429, 500, 502, 503 or 504."""
    backoff: Annotated[float, Field(ge=0, le=60)] = 0.5
    """Seconds before the first repetition; twice as long before each further one."""


_SENT = frozenset({"text", "messages", "row", "id", "tokens", "finished"})


def _plain(value: Any) -> Any:
    """Return what JSON has no word for as text, such as a date."""
    return dict(value) if isinstance(value, Mapping) else str(value)


class HttpScore:
    """Sends completions in batches: `{"inputs": [{"text", "messages", "row", "id", "tokens", "finished"}, ...]}`."""

    def __init__(self, config: Http) -> None:
        """Raise GymError where the variable with the token is not set."""
        self.config = config
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if config.token:
            if not os.environ.get(config.token):
                raise GymError(
                    f"the environment variable {config.token} is not set",
                    key="algorithm.rewards",
                    fix=f"export {config.token}, or leave `token` out",
                )
            self._headers["Authorization"] = f"Bearer {os.environ[config.token]}"

    def __call__(self, inputs: Sequence[RewardInput]) -> list[float | None]:
        """Return the endpoint's scores. Raises GymError when it cannot be reached or does not reply as agreed."""
        scores: list[float | None] = []
        for start in range(0, len(inputs), self.config.batch):
            batch = inputs[start : start + self.config.batch]
            told = [{name: value for name, value in vars(one).items() if name in _SENT} for one in batch]
            scores += self._scores(self._send(json.dumps({"inputs": told}, default=_plain)), len(batch))
        return scores

    def _send(self, body: str) -> bytes:
        for attempt in range(self.config.retries + 1):
            if attempt:
                time.sleep(self.config.backoff * 2 ** (attempt - 1))
            try:
                return self._post(body)
            except (_Passing, OSError, HTTPException) as error:
                why = str(error) or type(error).__name__
        raise self._error(
            f"{why}, {self.config.retries + 1} times", "see that it runs, or raise `timeout` or `retries`"
        )

    def _post(self, body: str) -> bytes:
        parts = urlsplit(self.config.url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        deadline = time.monotonic() + self.config.timeout
        connection = kind(parts.hostname or "", parts.port, timeout=self.config.timeout)
        try:
            connection.request(
                "POST", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), body, self._headers
            )
            reply = connection.getresponse()
            received = bytearray()
            while chunk := reply.read1(_CHUNK):
                received += chunk
                if len(received) > _LARGEST:
                    raise self._error(f"replied with more than {_LARGEST >> 20} MiB", 'reply {"scores": [...]}')
                if time.monotonic() > deadline:
                    raise _Passing(f"did not end its reply within {self.config.timeout:g} s")
        finally:
            connection.close()
        if reply.status in _PASSING:
            raise _Passing(f"replied with status {reply.status}")
        if 300 <= reply.status < 400:
            raise self._error(f"redirects to {reply.getheader('Location')}", "write that address, if you trust it")
        if reply.status != 200:
            raise self._error(f"replied with status {reply.status}: {bytes(received[:200])!r}", "see what it logs")
        return bytes(received)

    def _scores(self, reply: bytes, count: int) -> list[float | None]:
        try:
            content: Any = json.loads(reply)
            scores = content["scores"]
            valid = isinstance(scores, list) and all(
                score is None or (isinstance(score, int | float) and not isinstance(score, bool)) for score in scores
            )
        except (ValueError, RecursionError, TypeError, KeyError):
            valid = False
        if not valid:
            raise self._error(f"replied with {reply[:100]!r}", 'reply {"scores": [number or null, ...]}')
        if len(scores) != count:
            raise self._error(
                f"replied with {len(scores)} scores for {count} completions", "return one for each, in order"
            )
        return [None if score is None else float(score) for score in scores]

    def _error(self, why: str, fix: str) -> GymError:
        return GymError(f"{self.config.url} {why}", fix=fix)

"""Scores from an endpoint: one POST of JSON for each batch, sent again when the network or the server fails."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gym_core.errors import GymError
from gym_rewards.http_client import HttpClient, NoReply, TooLarge
from gym_rewards.reward import RewardInput

if TYPE_CHECKING:
    from gym_rewards.builtin.http_endpoint import Http

_PASSING = frozenset({429, 500, 502, 503, 504})
_LARGEST = 64 * 2**20  #: bytes of a reply
_SECRET = 8  #: least letters of a token that is crossed out; a shorter one is a word
_SENT = ("text", "messages", "row", "id", "tokens", "finished")
_SENT_OF_TURNS = (*_SENT, "turns", "environment_reward")  #: where an environment answered


def _plain(value: Any) -> Any:
    """Return what JSON has no word for as text, such as a date."""
    return dict(value) if isinstance(value, Mapping) else str(value)


def _told(one: RewardInput) -> dict[str, Any]:
    return {name: getattr(one, name) for name in (_SENT_OF_TURNS if one.turns else _SENT)}


class HttpScore:
    """Sends completions in batches: `{"inputs": [{"text", "messages", "row", "id", "tokens", "finished"}, ...]}`.

    Those of several turns have `turns` and `environment_reward` too.
    """

    def __init__(self, config: Http) -> None:
        """Raise GymError where the variable with the token is not set."""
        config.check()
        self.config, token = config, os.environ.get(config.token, "")
        self.client = HttpClient(config.url, token, config.timeout, config.retries, config.backoff, _PASSING, _LARGEST)

    def __call__(self, inputs: Sequence[RewardInput]) -> list[float | None]:
        """Return the endpoint's scores. Raises GymError when it cannot be reached or does not reply as agreed."""
        scores: list[float | None] = []
        for start in range(0, len(inputs), self.config.batch):
            batch = inputs[start : start + self.config.batch]
            body = json.dumps({"inputs": [_told(one) for one in batch]}, default=_plain)
            scores += self._scores(self._post(body), len(batch))
        return scores

    def _post(self, body: str) -> bytes:
        try:
            reply = self.client.send("POST", body=body)
        except NoReply as error:
            raise self._error(str(error), "see that it runs, or raise `timeout` or `retries`") from error
        except TooLarge as error:
            raise self._error(f"replied with {error}", 'reply {"scores": [...]}') from error
        if 300 <= reply.status < 400:
            place = self._clean(str(reply.headers.get("Location")).encode()).decode()
            raise self._error(f"redirects to {place}", "write that address, if you trust it")
        if reply.status != 200:
            raise self._error(
                f"replied with status {reply.status}: {self._clean(reply.body)[:200]!r}", "see what it logs"
            )
        return reply.body

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
            raise self._error(f"replied with {self._clean(reply)[:100]!r}", 'reply {"scores": [number or null, ...]}')
        if len(scores) != count:
            raise self._error(
                f"replied with {len(scores)} scores for {count} completions", "return one for each, in order"
            )
        return [None if score is None else float(score) for score in scores]

    def _clean(self, said: bytes) -> bytes:
        """Return what the endpoint said with the token crossed out, for some quote what they were sent."""
        token = self.client.token
        return said.replace(token.encode(), b"[token]") if len(token) >= _SECRET else said

    def _error(self, why: str, fix: str) -> GymError:
        return GymError(f"{self.config.url} {why}", fix=fix)

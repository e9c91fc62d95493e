"""HTTP client of a community's server: signs requests, uploads files in parts, and resumes an upload that broke off."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gym_core import GymError
from gym_core.errors import Problem
from gym_deltasoup.ledger.hash_chain import Event
from gym_deltasoup.ledger.signatures import message, public, signed
from gym_rewards.http_client import HttpClient, NoReply, Reply, TooLarge

PASSING = (408, 429, 503)  #: statuses after which a request is sent again
REPLY_BYTES = 1 << 26


@dataclass(frozen=True)
class SoupClient:
    """Talks to one server for one member."""

    url: str  #: such as `http://127.0.0.1:8770`
    key: Ed25519PrivateKey
    token: str = ""
    timeout: float = 120.0  #: seconds of a request
    retries: int = 5
    backoff: float = 0.5  #: seconds before the first repetition

    def server(self) -> dict[str, Any]:
        """Return what the server says of itself. Raises GymError where it does not answer, or refuses."""
        return self._asked("GET", "/v1/server", has="round")

    def join(self, member: str, proof: str = "") -> dict[str, Any]:
        """Become a member of this name. Doing it again changes nothing."""
        told = {"server": self.server()["server"], "member": member, "key": public(self.key), "proof": proof}
        enrolment = {**told, "time": time.time()}
        signature = signed(self.key, message("enrolment", enrolment))
        return self._asked("POST", "/v1/members", {"enrolment": enrolment, "signature": signature}, "member")

    def member(self, name: str) -> dict[str, Any]:
        """Return what the server knows of a member."""
        return self._asked("GET", f"/v1/members/{name}", has="member")

    def contribute(self, member: str, file: Path, kind: str, details: Mapping[str, Any], base: str) -> Event:
        """Upload a file of weights, and return the event that accepts it. An upload that broke off goes on.

        Raises GymError with the reasons of the server where it refuses, and where it does not answer.
        """
        told = self.server()
        content, size = _hashed(file), file.stat().st_size
        manifest = {
            "server": told["server"],
            "round": told["round"]["number"],
            "base": base,
            "member": member,
            "content": content,
            "size": size,
            "kind": kind,
            "details": dict(details),
            "time": time.time(),
        }
        signature = signed(self.key, message("contribution", manifest))
        found = self._asked("POST", "/v1/contributions", {"manifest": manifest, "signature": signature})
        while "accepted" not in found and found["received"] < size:
            found = self._add(found["upload"], found["received"], file, told["limits"]["chunk_bytes"])
        if "accepted" not in found:
            found = self._asked("POST", f"/v1/uploads/{found['upload']}/finish")
        return Event(**found["accepted"])

    def secure_state(self, member: str) -> dict[str, Any]:
        """Return what a step of secure aggregation asks of a member."""
        return self._asked("GET", f"/v1/secure/{member}")

    def say_secure(self, step: Mapping[str, Any], signature: str) -> dict[str, Any]:
        """Send what a member signed for a step of secure aggregation."""
        return self._asked("POST", "/v1/secure", {"step": dict(step), "signature": signature})

    def report(self, number: int) -> dict[str, Any]:
        """Return the report of a round."""
        return self._asked("GET", f"/v1/rounds/{number}/report", has="round")

    def piece(self, number: int, name: str, begin: int) -> bytes:
        """Return bytes of a file of what a round made, from one on; nothing behind its end."""
        reply = self._sent("GET", f"/v1/rounds/{number}/model/{quote(name)}?offset={begin}", None)
        if reply.status >= 400:
            self._told(reply)  # which raises
        return reply.body

    def ledger(self) -> tuple[str, list[Event]]:
        """Return the name of the server and all of its events."""
        events: list[Event] = []
        while True:
            page = self._asked("GET", f"/v1/ledger?after={len(events)}", has="events")
            if not page["events"]:
                return page["server"], events
            events += [Event(**each) for each in page["events"]]

    def _add(self, token: str, offset: int, file: Path, most: int) -> dict[str, Any]:
        with file.open("rb") as data:
            data.seek(offset)
            part = data.read(most)
        if not part:
            raise GymError("the file became shorter while it was sent", where=str(file))
        digest = base64.b64encode(hashlib.sha256(part).digest()).decode()
        headers = {"Upload-Offset": str(offset), "Content-Digest": f"sha-256=:{digest}:"}
        reply = self._sent("PATCH", f"/v1/uploads/{token}", part, headers)
        if reply.status == 409:  # a repeated part that arrived the first time
            return {"upload": token, "received": json.loads(reply.body)["received"]}
        return self._told(reply)

    def _asked(self, method: str, path: str, body: Any = None, has: str = "") -> dict[str, Any]:
        """Return what the server answers; `has` is a key that it has to have."""
        found = self._told(self._sent(method, path, None if body is None else json.dumps(body).encode()))
        if has and has not in found:
            raise self._stranger(200)
        return found

    def _told(self, reply: Reply) -> dict[str, Any]:
        """Return what a server said. Raises GymError with its reasons where it refused, and where it is no such server."""
        try:
            found = json.loads(reply.body)
            if reply.status >= 400:
                raise GymError([Problem(**each) for each in found["problems"]])
            return dict(found)
        except (ValueError, TypeError, KeyError):
            raise self._stranger(reply.status) from None

    def _stranger(self, status: int) -> GymError:
        why = f"it answered {status}, and not as the server of a community does"
        return GymError(
            why, where=self.url, fix="see whether that is its address, and whether a proxy answers in its place"
        )

    def _sent(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str] | None = None) -> Reply:
        client = HttpClient(
            self.url.rstrip("/"), self.token, self.timeout, self.retries, self.backoff, PASSING, REPLY_BYTES
        )
        try:
            return client.send(method, path, body, headers)
        except (NoReply, TooLarge) as error:
            raise GymError(f"the server does not answer: {error}", where=self.url, fix="try again later") from None


def _hashed(file: Path) -> str:
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()

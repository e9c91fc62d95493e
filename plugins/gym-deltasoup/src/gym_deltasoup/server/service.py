"""What a server does when it is asked, without HTTP: members, contributions, and rounds that end by the clock."""

from __future__ import annotations

import logging
import time
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gym_core import GymError
from gym_deltasoup.config.server import SoupServerConfig
from gym_deltasoup.ledger.hash_chain import Event
from gym_deltasoup.ledger.signatures import private_key, public, signed
from gym_deltasoup.rounds.checks import Refused
from gym_deltasoup.rounds.closing import close_round
from gym_deltasoup.rounds.community import Community, Evaluate
from gym_deltasoup.rounds.contribution_store import Limits
from gym_deltasoup.rounds.privacy_seam import RoundPrivacy
from gym_deltasoup.server.enrolment import policy
from gym_deltasoup.server.requests import (
    SignedEnrolment,
    SignedManifest,
    check_clock,
    check_enrolment,
    contribution,
    parsed,
)
from gym_deltasoup.server.secure_rounds import SecureRounds
from gym_deltasoup.server.uploads import Unknown, Upload, Uploads

KEY = "server.pem"
REST = 60.0  #: least seconds before a round that could not end is tried again, where nobody contributed meanwhile

_log = logging.getLogger(__name__)


class Service:
    """A community that strangers contribute to."""

    def __init__(
        self, config: SoupServerConfig, evaluate: Evaluate | None = None, privacy: RoundPrivacy | None = None
    ) -> None:
        """Open the community, and go on where an earlier process stopped. Raises GymError where it cannot be served."""
        self.config = config
        limits = config.limits
        sizes = Limits(
            contribution_bytes=limits.contribution_bytes,
            header_bytes=limits.header_bytes,
            free_bytes=limits.free_bytes,
        )
        self.policy = policy(config)
        self.community = Community(config, evaluate, privacy, sizes)
        self.key: Ed25519PrivateKey = private_key(self.community.folder / KEY)
        self._say("server_key", "server key", key=public(self.key))
        self._say("enrolment", "enrolment", policy=config.enrolment)
        self.uploads = Uploads(self.community, limits)
        self.secure = SecureRounds(self.community, config) if config.secure_aggregation else None
        self.trouble = ""  #: why the last round could not end
        self._tried = (0, 0)  #: round and contributions of the last trial to end one
        self._rests = 0.0  #: until when the same is not tried again
        if self.community.ledger.round().state == "closing":
            self.tick()

    def close(self) -> None:
        """Close the ledger."""
        self.community.close()

    def told(self) -> dict[str, Any]:
        """Return what anybody may know."""
        config, ledger = self.config, self.community.ledger
        now = ledger.round()
        return {
            "server": self.community.server,
            "key": public(self.key),
            "time": time.time(),
            "base": {"name": config.base_model, "fingerprint": self.community.base.fingerprint},
            "kind": ledger.identity("kind"),
            "enrolment": config.enrolment,
            "round": {
                "number": now.number,
                "state": now.state,
                "closes": now.opened + config.contribution_window,
                "contributions": len(ledger.contributions(now.number)),
                "min_contributors": config.min_contributors,
                "max_contributors": config.max_contributors,
                "trouble": self.trouble,
            },
            "secure": None if self.secure is None else self.secure.told(),
            "limits": {
                "contribution_bytes": config.limits.contribution_bytes,
                "chunk_bytes": config.limits.chunk_bytes,
            },
        }

    def enrol(self, body: bytes) -> dict[str, Any]:
        """Make somebody a member; doing it again changes nothing. Raises Refused."""
        said = parsed(SignedEnrolment, body)
        wanted = said.enrolment
        check_enrolment(said, self.community.server)
        check_clock(wanted.time, self.config.limits.clock_seconds)
        with self.community.ledger.writing() as rows:
            held = self.community.ledger.member(wanted.member)
            if held is not None and held.key == wanted.key:
                return self._member(wanted.member)
            if held is not None:
                raise Refused("somebody else has this name", key="member", fix="choose another one")
            if rows.execute("SELECT 1 FROM members WHERE key = ?", (wanted.key,)).fetchone() is not None:
                raise Refused(
                    "this key has another name here", key="key", fix="go by that name, or join with another key"
                )
            identity = self.policy(rows, wanted.member, wanted.proof)
            self.community.enrol(rows, wanted.member, wanted.key, identity)
        return self._member(wanted.member)

    def member(self, name: str) -> dict[str, Any]:
        """Return what is known of a member. Raises Unknown."""
        if self.community.ledger.member(name) is None:
            raise Unknown(f"{name} is no member here", key="member", fix="gym soup join")
        return self._member(name)

    def begin(self, body: bytes) -> Upload | Event:
        """Begin an upload, or go on with it. Raises Refused and what `Uploads.begin` raises."""
        said = parsed(SignedManifest, body)
        given, manifest = contribution(said, self.community)
        check_clock(said.manifest.time, self.config.limits.clock_seconds)
        return self.uploads.begin(given, manifest, said.signature)

    def secure_rounds(self) -> SecureRounds:
        """Return the steps of secure aggregation. Raises Unknown where contributions come in the open."""
        if self.secure is None:
            raise Unknown("this community has no secure aggregation")
        return self.secure

    def tick(self) -> bool:
        """End the round whose window is over, or that is full; return whether it ended.

        What keeps it from ending is told as `trouble`. It is tried again when somebody more has contributed, or after a rest as
        long as the trial was: while a round is closing it takes no contributions.
        """
        try:
            return self._over() and self._close()
        except Exception as error:  # also of the operator's functions: whoever ends rounds has to go on
            if isinstance(error, GymError):
                self.trouble = error.problems[0].why
            else:  # whose text may tell of this machine
                self.trouble = f"it raised {type(error).__name__}, as the log of the server says"
                _log.warning("round %d could not end", self.community.ledger.round().number, exc_info=error)
            return False

    def _over(self) -> bool:
        now = self.community.ledger.round()
        if now.state == "closing":  # of a process that died
            return True
        if self.secure is not None:
            return self.secure.advance()
        count = len(self.community.ledger.contributions(now.number))
        over = now.is_over(time.time(), self.config.contribution_window)
        return (over and count >= self.config.min_contributors) or count >= self.config.max_contributors

    def _close(self) -> bool:
        number, began = self.community.ledger.round().number, time.monotonic()
        trial = (number, len(self.community.ledger.contributions(number)))
        if trial == self._tried and began < self._rests:
            return False
        self._tried = trial
        try:
            close_round(self.community, sign=lambda data: signed(self.key, data))
        finally:
            took = time.monotonic() - began
            self._rests = began + took + max(REST, took)
        self.trouble = ""
        self.uploads.forget()
        return True

    def _member(self, name: str) -> dict[str, Any]:
        ledger = self.community.ledger
        found = ledger.member(name)
        assert found is not None, "asked for a member"
        number = ledger.round().number
        mine = [each for each in ledger.contributions(number) if each.member == name]
        refused = [each["why"] for each in self.community.refusals(number) if each["member"] == name]
        content = mine[0].content if mine else None
        told = {"member": name, "key": found.key, "since": found.round, "reputation": found.reputation}
        return {**told, "round": number, "contributed": content, "refused": refused}

    def _say(self, name: str, event: str, **data: str) -> None:
        """Write down what the server is, where the ledger does not say so yet."""
        ledger = self.community.ledger
        value = next(iter(data.values()))
        with ledger.writing() as rows:
            if ledger.identity(name) != value:
                rows.execute("INSERT OR REPLACE INTO identity VALUES (?, ?)", (name, value))
                ledger.append(rows, event, ledger.round().number, **data)

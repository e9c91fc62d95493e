"""What contributors send: JSON of a fixed form, signed."""

from __future__ import annotations

import json
import time
from typing import Annotated, Literal, TypeVar

from pydantic import Field, ValidationError

from gym_core.component import Config
from gym_core.errors import printable
from gym_deltasoup.ledger.ledger import Contribution
from gym_deltasoup.ledger.signatures import holds, message
from gym_deltasoup.rounds.checks import Refused
from gym_deltasoup.rounds.community import Community
from gym_deltasoup.rounds.contribution_store import Details, Kind

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Server = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Signature = Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]
Count = Annotated[int, Field(ge=1, lt=1 << 60)]
Seconds = Annotated[float, Field(allow_inf_nan=False)]


class Enrolment(Config):
    """Who wants to become a member."""

    server: Server
    """The server that this is for."""
    member: Name
    """The name to be known by."""
    key: Hash
    """Ed25519 public key."""
    proof: Annotated[str, Field(max_length=10_000)] = ""
    """An invitation, or a proof of who one is, as the server asks."""
    time: Seconds
    """Clock of the contributor, in seconds since 1970."""


class Manifest(Config):
    """What is contributed, to what."""

    server: Server
    """The server that this is for."""
    round: Count
    """The round."""
    base: Hash
    """Fingerprint of the model that was trained from."""
    member: Name
    """Who contributes."""
    content: Hash
    """SHA-256 of the file."""
    size: Count
    """Bytes of the file."""
    kind: Kind
    """Kind of the artifact."""
    details: Details
    """What opens it beside the weights."""
    time: Seconds
    """Clock of the contributor, in seconds since 1970."""


class SignedEnrolment(Config):
    """An enrolment, signed by its own key: who shows a key has it."""

    enrolment: Enrolment
    """What is signed."""
    signature: Signature
    """Over the canonical text."""


class SignedManifest(Config):
    """A manifest, signed by the member."""

    manifest: Manifest
    """What is signed."""
    signature: Signature
    """Over the canonical text."""


class Step(Config):
    """What a member says in a step of secure aggregation."""

    server: Server
    """The server that this is for."""
    round: Count
    """The round."""
    base: Hash
    """Fingerprint of the model that was trained from."""
    member: Name
    """Who says it."""
    time: Seconds
    """Clock of the member, in seconds since 1970."""

    def kept(self, told: dict[str, object], signature: str) -> dict[str, object]:
        """Return what is kept of it, given it as plain data: all of it with its signature, which others check."""
        return {"step": told, "signature": signature}


class Advertise(Step):
    """I take part, and these are my keys."""

    step: Literal["advertise"]
    """Which step."""
    layout: Hash
    """SHA-256 of the names and shapes of what will be added up."""
    shares: Hash
    """X25519 public key that shares for this member are encrypted with."""
    masks: Hash
    """X25519 public key that masks are agreed on with."""


class Share(Step):
    """These are shares of my secrets."""

    step: Literal["share"]
    """Which step."""
    shares: Annotated[dict[Name, Annotated[str, Field(pattern=r"^[0-9a-f]{296}$")]], Field(max_length=200)]
    """By the name of each other member of the group: what it alone can read."""

    def kept(self, told: dict[str, object], signature: str) -> dict[str, object]:
        """Return the shares."""
        return {**self.shares}


class Confirm(Step):
    """I was told that the numbers of these members came."""

    step: Literal["confirm"]
    """Which step."""
    came: Annotated[list[Name], Field(max_length=200)]
    """Their names, sorted."""


PlainShares = Annotated[dict[Name, Annotated[str, Field(pattern=r"^[0-9a-f]{132}$")]], Field(max_length=200)]


class Unmask(Step):
    """These shares take masks away."""

    step: Literal["reveal"]
    """Which step."""
    own: PlainShares
    """Of the own masks of members whose numbers came."""
    keys: PlainShares
    """Of the keys of members who dropped out."""

    def kept(self, told: dict[str, object], signature: str) -> dict[str, object]:
        """Return the shares."""
        return {"own": self.own, "keys": self.keys}


class SignedStep(Config):
    """A step, signed by the member."""

    step: Annotated[Advertise | Share | Confirm | Unmask, Field(discriminator="step")]
    """What is signed."""
    signature: Signature
    """Over the canonical text."""


T = TypeVar("T", bound=Config)


class Malformed(Refused):
    """A request that is no JSON of the form asked for."""


class Forbidden(Refused):
    """A request of somebody who may not ask for it."""


def parsed(cls: type[T], body: bytes) -> T:
    """Return what a body says. Raises Malformed, also for words that would have to be converted: they would be signed so."""
    try:
        said = json.loads(body)
        json.dumps(said, ensure_ascii=False, allow_nan=False).encode()
        found = cls.model_validate(said)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise Malformed(str(first["msg"])[:200], key=printable(".".join(map(str, first["loc"])), 100)) from None
    except (ValueError, RecursionError):
        raise Malformed("the body is no JSON of the kind that is sent here") from None
    if found.model_dump(mode="json", exclude_unset=True) != said:
        raise Malformed("the body has values that are not of their kinds, such as numbers in quotes")
    return found


def check_clock(said: float, most: float) -> None:
    """Raise Refused for a clock that is off."""
    now = time.time()
    if abs(said - now) > most:
        why = f"your clock says {said:.0f}, and that of the server {now:.0f}, more than {most:.0f} seconds apart"
        raise Refused(why, key="time", fix="set it")


def check_enrolment(said: SignedEnrolment, server: str) -> None:
    """Raise Forbidden where an enrolment is for another server, or its signature does not hold."""
    if said.enrolment.server != server:
        raise Forbidden("this was signed for another server", key="server")
    text = message("enrolment", said.enrolment.model_dump(mode="json", exclude_unset=True))
    if not holds(said.enrolment.key, text, said.signature):
        raise Forbidden("the signature does not hold", key="signature")


def check_signed(said: Manifest | Step, purpose: str, signature: str, community: Community) -> dict[str, object]:
    """Return what was signed. Raises Forbidden where a member did not sign it for this server, Refused for another base."""
    told = said.model_dump(mode="json", exclude_unset=True)
    member = community.ledger.member(said.member)
    if member is None or member.key is None:
        raise Forbidden(f"{said.member} is no member", key="member", fix="gym soup join")
    if said.server != community.server:
        raise Forbidden("this was signed for another server", key="server")
    if not holds(member.key, message(purpose, told), signature):
        raise Forbidden("the signature does not hold", key="signature")
    if said.base != community.base.fingerprint:
        why = f"it was trained from {said.base[:12]}, and this community trains from {community.base.fingerprint[:12]}"
        raise Refused(why, key="base", fix=f"train from {community.base.name}; the same shapes are not enough")
    return told


def contribution(said: SignedManifest, community: Community) -> tuple[Contribution, dict[str, object]]:
    """Return what is contributed, and the manifest as it was signed. Raises Forbidden or Refused."""
    manifest = said.manifest
    told = check_signed(manifest, "contribution", said.signature, community)
    if manifest.details.kind != manifest.kind:
        raise Refused(f"these are details of kind {manifest.details.kind}, not {manifest.kind}", key="details")
    return Contribution(
        manifest.round, manifest.member, manifest.content, manifest.size, manifest.kind, manifest.details.told()
    ), told

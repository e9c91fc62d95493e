"""A model as a contribution: laid out as the server asks, and uploaded as it is or through secure aggregation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gym_core import GymError
from gym_data.location import locate
from gym_deltasoup.client.client import SoupClient
from gym_deltasoup.client.secure import SecureContribution
from gym_deltasoup.ledger.hash_chain import Event
from gym_deltasoup.rounds.base import Base
from gym_deltasoup.rounds.contribution_store import lay_out
from gym_deltasoup.rounds.model_to_file import Taken, taken
from gym_deltasoup.rounds.vectors import change_of, digest, layout
from gym_torch.checkpoints.base_fingerprint import base_fingerprint

Announce = Callable[[str], None]  #: is given messages for the user


def contribute_model(client: SoupClient, member: str, model: Any, announce: Announce | None = None) -> Event:
    """Contribute a directory, what a run made, or a model in memory (see `DeltaSoup.contribute`); return its event.

    Under secure aggregation it takes all steps of the round, and returns when nothing more is asked of this member.

    Raises GymError with the reasons of the server where it refuses, and where it does not answer.
    """
    with TemporaryDirectory() as folder:
        found = taken(model, Path(folder))
        told = client.server()
        if found.base:
            found.check_computes(locate(found.base))
        if told["secure"] is not None:
            return _masked(client, member, found, told, Path(folder)).run(announce)
        base = base_fingerprint(locate(found.base)) if found.base else told["base"]["fingerprint"]
        return client.contribute(member, found.file, found.details.kind, found.details.told(), base)


def _masked(client: SoupClient, member: str, found: Taken, told: Mapping[str, Any], folder: Path) -> SecureContribution:
    """Return the part of a member in secure aggregation. Raises GymError where the model has another base."""
    base, rules = Base(found.base or told["base"]["name"]), told["secure"]
    if base.fingerprint != told["base"]["fingerprint"]:
        why = f"{base.name} is not the base of this community, {told['base']['name']}"
        raise GymError(why, where=client.url, key="base", fix="train from that; the same shapes are not enough")
    shapes = layout(base, rules["layers"], rules["adapter"])
    lay_out(found.file, found.details.kind, found.details.told(), base, folder / "laid out")
    change = change_of(folder / "laid out", base, shapes, folder / "unpacked")
    return SecureContribution(client, member, change, base.fingerprint, digest(shapes))

"""Fetches what a round made from a server, and trusts no byte that the ledger does not name."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path

from gym_core import Artifact, GymError
from gym_core.errors import printable
from gym_core.files import replacing
from gym_data.location import locate
from gym_deltasoup.artifact_merge import check_free
from gym_deltasoup.client.client import SoupClient
from gym_deltasoup.ledger.verify import verify
from gym_torch.checkpoints.base_fingerprint import check_base

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  #: of a file


def fetch(client: SoupClient, number: int, into: Path, base: str | None = None) -> Artifact:
    """Write the model of a round into a new folder, whole or not at all.

    Args:
        client: of the server.
        number: the round.
        into: the folder.
        base: the model that it belongs to, where that is called otherwise here; by default as the server calls it.

    Raises GymError where the round made none, where the ledger does not hold or names other bytes, and for another base.

    """
    check_free(into)
    server, events = client.ledger()
    wrong = verify(server, events).problems
    if wrong:
        raise GymError(f"the ledger does not hold: {wrong[0]}", where=client.url, fix="gym soup verify")
    closed = [each.data for each in events if each.round == number and each.data["event"] == "round closed"]
    if not closed:
        raise GymError(f"round {number} is not closed", where=client.url, fix="gym soup status")
    names = closed[0].get("model")
    if not names or not isinstance(names, dict):
        why = f"round {number} made nothing that is better than the base, which stays"
        raise GymError(why, where=client.url, fix=f"gym soup report {client.url} {number}")
    into.absolute().parent.mkdir(parents=True, exist_ok=True)
    with replacing(into.absolute()) as building:
        building.mkdir()
        for name, digest in names.items():
            if not NAME.fullmatch(name):
                raise GymError(f"the ledger names a file `{printable(name, 50)}`", where=client.url)
            if _written(client, number, name, building / name) != digest:
                why = f"{name} is not what the ledger of round {number} names"
                raise GymError(why, where=client.url, fix="try again; if it stays so, the server is not to be trusted")
        found = Artifact.read(building)
        if base is not None and found.kind != "model":
            check_base(found, locate(base))
            replace(found, base=base if not Path(base).exists() else str(Path(base).resolve())).record()
    return Artifact.read(into)


def _written(client: SoupClient, number: int, name: str, path: Path) -> str:
    """Write a file piece by piece, and return its SHA-256."""
    digest, begin = hashlib.sha256(), 0
    with path.open("wb") as file:
        while part := client.piece(number, name, begin):
            file.write(part)
            digest.update(part)
            begin += len(part)
    return digest.hexdigest()

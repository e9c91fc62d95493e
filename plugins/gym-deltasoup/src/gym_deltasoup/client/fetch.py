"""Fetches what a round made from a server, and trusts no byte that the ledger does not name."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

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

    Raises GymError where the round made none, where the ledger does not hold or names other bytes, for another base, and
    where the disk has less room than the files take.

    """
    check_free(into)
    server, events = client.ledger()
    wrong = verify(server, events).problems
    if wrong:
        raise GymError(f"the ledger does not hold: {wrong[0]}", where=client.url, fix="gym soup verify")
    closed = [each.data for each in events if each.round == number and each.data["event"] == "round closed"]
    if not closed:
        raise GymError(f"round {number} is not closed", where=client.url, fix="gym soup status")
    files = _named(client, number, closed[0])
    into.absolute().parent.mkdir(parents=True, exist_ok=True)
    needed, free = sum(said["bytes"] for said in files.values()), shutil.disk_usage(into.absolute().parent).free
    if needed > free:
        raise GymError(f"it takes {needed:,} bytes, and {free:,} are free", where=str(into), fix="make room")
    with replacing(into.absolute()) as building:
        building.mkdir()
        for name, said in files.items():
            if _written(client, number, name, building / name, said["bytes"]) != said["sha256"]:
                why = f"{name} is not what the ledger of round {number} names"
                raise GymError(why, where=client.url, fix="try again; if it stays so, the server is not to be trusted")
        found = Artifact.read(building)
        if base is not None and found.kind != "model":
            check_base(found, locate(base))
            replace(found, base=base if not Path(base).exists() else str(Path(base).resolve())).record()
    return Artifact.read(into)


def _named(client: SoupClient, number: int, closed: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the files that the end of a round names. Raises GymError where it names none, or something else than files."""
    files = closed.get("model")
    if files is None:
        why, fix = f"the ledger does not say what files round {number} made", "ask who runs the server for them"
        raise GymError(why, where=client.url, fix=fix)
    if not files:
        why = f"round {number} made nothing that is better than the base, which stays"
        raise GymError(why, where=client.url, fix=f"gym soup report {client.url} {number}")
    if not isinstance(files, dict):
        raise GymError(f"the ledger of round {number} names no files", where=client.url, key="model")
    for name, said in files.items():
        if not NAME.fullmatch(name):
            raise GymError(f"the ledger names a file `{printable(name, 50)}`", where=client.url)
        size = said.get("bytes") if isinstance(said, dict) else None
        if type(size) is not int or size < 0 or not isinstance(said.get("sha256"), str):
            raise GymError(f"the ledger does not say what {name} of round {number} holds", where=client.url)
    return files


def _written(client: SoupClient, number: int, name: str, path: Path, size: int) -> str:
    """Write a file piece by piece, and return its SHA-256; of a longer one than the ledger names, that of its first bytes."""
    digest, begin = hashlib.sha256(), 0
    with path.open("wb") as file:
        while begin <= size and (part := client.piece(number, name, begin)):
            file.write(part)
            digest.update(part)
            begin += len(part)
    return digest.hexdigest()

"""The files of what a round made, as anybody may have them; the ledger names their hashes."""

from __future__ import annotations

from pathlib import Path

from gym_deltasoup.artifact_merge import REPORT
from gym_deltasoup.rounds.contribution_store import hashed

PIECE = 1 << 22  #: bytes of a file that are given at a time


def files(model: Path) -> dict[str, Path]:
    """Return the files of a merged model by name, but for the report of the merge, which tells of single contributions."""
    return {each.name: each for each in sorted(model.iterdir()) if each.is_file() and each.name != REPORT}


def hashes(model: Path) -> dict[str, str]:
    """Return the SHA-256 of each, by name."""
    return {name: hashed(path) for name, path in files(model).items()}


def piece(path: Path, begin: int) -> bytes:
    """Return what a file holds from a byte on, at most `PIECE` bytes; nothing behind its end."""
    with path.open("rb") as data:
        data.seek(begin)
        return data.read(PIECE)

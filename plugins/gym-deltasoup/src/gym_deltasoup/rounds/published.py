"""The files of what a round made, as anybody may have them; the ledger names their hashes and sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gym_deltasoup.artifact_merge import REPORT
from gym_deltasoup.rounds.contribution_store import hashed

PIECE = 1 << 22  #: bytes of a file that are given at a time


def files(model: Path) -> dict[str, Path]:
    """Return the files of a merged model by name, but for the report of the merge, which tells of single contributions."""
    return {each.name: each for each in sorted(model.iterdir()) if each.is_file() and each.name != REPORT}


def named(model: Path) -> dict[str, dict[str, Any]]:
    """Return what the ledger says of each file, by name: its SHA-256 and its bytes."""
    return {name: {"sha256": hashed(path), "bytes": path.stat().st_size} for name, path in files(model).items()}


def piece(path: Path, begin: int) -> bytes:
    """Return what a file holds from a byte on, at most `PIECE` bytes; nothing behind its end."""
    with path.open("rb") as data:
        data.seek(begin)
        return data.read(PIECE)

"""What lies beside an artifact and says how well it agrees with its source: `certificate.json`."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gym_core import Artifact, GymError
from gym_torch.checkpoints.base_model import base_of
from gym_torch.checkpoints.open_artifact import CERTIFICATE
from gym_torch.model import fingerprint

PROSE = (CERTIFICATE, "README.md")
"""Files that are about a model and no part of it: whoever edits a card before publishing changes nothing that is certified."""
VERIFIED, UNVERIFIED = "verified", "unverified"


def identity(artifact: Artifact) -> dict[str, str]:
    """Return what names what is exported: a hash of the artifact as it lies there, and one of its base."""
    told = artifact.to_json() | {"path": ""}
    text = json.dumps([told, hashes(artifact.path)], sort_keys=True)
    return {"artifact": hashlib.sha256(text.encode()).hexdigest(), "base": fingerprint.of_model(base_of(artifact))}


def hashes(path: Path) -> dict[str, str]:
    """Return the SHA-256 of each file in a folder but those of `PROSE`."""
    files = (file for file in path.rglob("*") if file.is_file() and file.name not in PROSE)
    return {file.relative_to(path).as_posix(): fingerprint.of_file(file) for file in sorted(files)}


def versions(more: Mapping[str, str]) -> dict[str, str]:
    """Return what wrote and compared, by name and version."""
    ours = {name: version(name) for name in ("gym-export", "torch", "transformers")}
    return {"python": platform.python_version()} | ours | dict(more)


def read(path: Path) -> dict[str, Any]:
    """Return a certificate. Raises GymError where there is none, or it is damaged."""
    file = path / CERTIFICATE
    if not file.is_file():
        raise GymError(f"there is no {CERTIFICATE}, so this is no export", where=str(path))
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        complete = {"exporter", "options", "source", "status", "files"} <= found.keys()
    except (ValueError, AttributeError):
        complete = False
    if not complete or found.pop("seal", None) != _seal(found):
        raise GymError(f"{CERTIFICATE} is damaged", where=str(path), fix="export again, to another folder")
    certificate: dict[str, Any] = found
    return certificate


def write(path: Path, told: Mapping[str, Any]) -> None:
    """Write a certificate into a folder, with a hash of itself."""
    text = json.dumps({**told, "seal": _seal(told)}, indent=1)
    (path / CERTIFICATE).write_text(text + "\n", encoding="utf-8")


def _seal(told: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def check_files(path: Path, certificate: Mapping[str, Any]) -> None:
    """Raise GymError where a file is not as it was certified, is missing, or was put there since."""
    wanted: dict[str, str] = certificate["files"]
    fix = "export again, to another folder"
    links = [file for file in path.rglob("*") if file.is_symlink()]
    if links:
        raise GymError(f"{links[0].relative_to(path)} is a symbolic link", where=str(path), fix=fix)
    found = {
        file.relative_to(path).as_posix(): _digest(file)
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name not in PROSE
    }
    for name in sorted(wanted.keys() | found.keys()):
        if found.get(name) != wanted.get(name):
            what = "is missing" if name not in found else "is not what was certified"
            raise GymError(f"{name} {what if name in wanted else 'was not certified'}", where=str(path), fix=fix)
    if not wanted:
        raise GymError("it names no file", where=str(path / CERTIFICATE), fix=fix)


def _digest(file: Path) -> str:
    """Return the SHA-256 of what a file holds now, whatever was remembered of it."""
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()

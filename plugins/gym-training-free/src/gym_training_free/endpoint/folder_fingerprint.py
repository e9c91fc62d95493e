"""What a folder that gym-serve serves holds, by content: its own files, and those of the model that an adapter belongs to."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from gym_core.artifact import Artifact
from gym_core.errors import GymError

#: Files that decide what a folder answers.
_DECIDE = ("*.safetensors", "*.bin", "*.jinja", "*.model", "*.txt", "*config.json", "tokenizer*.json", "vocab.json")


def fingerprint(folder: Path) -> str:
    """Return a hash of the files that decide what a folder answers: weights, tokenizer, adapter and the model below it.

    Files are read in full. Raises GymError where the folder does not say what it holds, or a base is not there.
    """
    from gym_manage.recorded import artifact_in

    artifact = artifact_in(folder, "model")
    told = [artifact.kind, artifact.details, *_contents(artifact.path)]
    if artifact.kind != "model":
        told += _contents(_base(artifact))
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _base(artifact: Artifact) -> Path:
    """Return the folder of the model that an adapter or a delta belongs to."""
    from gym_data.location import locate

    if not (isinstance(artifact.base, str) and artifact.base):
        why = f"this {artifact.kind} does not say which model it belongs to"
        raise GymError(
            why, where=str(artifact.path), key="model", fix="name another folder, or the address of a server"
        )
    return locate(artifact.base, artifact.details.get("revision"), key="model")


def _contents(folder: Path) -> list[list[str]]:
    """Return the name and the SHA-256 of each file that decides."""
    found = {path for pattern in _DECIDE for path in folder.glob(pattern) if path.is_file()}
    told = []
    for path in sorted(found):
        with path.open("rb") as file:
            told.append([path.name, hashlib.file_digest(file, "sha256").hexdigest()])
    return told

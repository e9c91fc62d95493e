"""Finds the base model of an artifact."""

from __future__ import annotations

from pathlib import Path

from gym_core import Artifact, GymError
from gym_data.location import locate


def base_of(artifact: Artifact) -> Path:
    """Return the directory of the model that an adapter or delta belongs to, or of the model itself.

    Raises GymError where it is not where it was, and what `locate` raises.
    """
    if artifact.kind == "model":
        return artifact.path
    if is_gone(artifact):
        raise GymError(
            f"the base of this {artifact.kind} is not there any more: {artifact.base}",
            where=str(artifact.path),
            fix="say where it is now: `base=PATH`, or `--base PATH` of gym export and gym quantize; or link it there (`ln -s`)",
        )
    return locate(artifact.base, artifact.details.get("revision"))


def is_gone(artifact: Artifact) -> bool:
    """Whether the base of an artifact is a folder, and not where it was."""
    return artifact.kind != "model" and Path(artifact.base).is_absolute() and not Path(artifact.base).exists()

"""Finds the base model of an artifact."""

from __future__ import annotations

from pathlib import Path

from gym_core import Artifact
from gym_data.location import locate


def base_of(artifact: Artifact) -> Path:
    """Return the directory of the model that an adapter or delta belongs to, or of the model itself."""
    return artifact.path if artifact.kind == "model" else locate(artifact.base, artifact.details.get("revision"))

"""What components build for the kernel and for each other, as protocols."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

from gym_core.artifact import Artifact


@runtime_checkable
class Trainer(Protocol):
    """What `build_trainer` returns."""

    def train(self) -> Artifact:
        """Train to the end, resuming where an earlier process stopped, and return what was made."""
        ...


class ArtifactWriter(Protocol):
    """What an exporter builds."""

    def export(self, artifact: Artifact, into: Path) -> Path:
        """Write the artifact under `into`, all or nothing, and return what was written."""
        ...

"""What components build for the kernel and for each other, as protocols."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from gym_core.artifact import Artifact


@runtime_checkable
class Trainer(Protocol):
    """What `build_trainer` returns."""

    def train(self) -> Artifact:
        """Train to the end, resuming where an earlier process stopped, and return what was made."""
        ...


class Rows(Protocol):
    """What a source builds."""

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows in a fixed order."""
        ...

    def fingerprint(self) -> str:
        """Return a string that changes when the rows do."""
        ...


class ArtifactWriter(Protocol):
    """What an exporter builds."""

    def export(self, artifact: Artifact, into: Path) -> Path:
        """Write the artifact under `into`, all or nothing, and return what was written."""
        ...

"""An artifact: what a run made, on disk, and what it was made from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Artifact:
    """A directory with a model, an adapter or a delta."""

    path: Path
    kind: str = "model"  #: `model`, `adapter` or `delta`
    base: str = ""  #: the model an adapter or delta belongs to: a name, a directory or a Hub id
    details: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data for `run.json`."""
        return asdict(self) | {"path": str(self.path)}

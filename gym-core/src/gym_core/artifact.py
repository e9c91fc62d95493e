"""An artifact: what a run made, on disk, what it is for, and what it was made from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from gym_core.errors import GymError
from gym_core.files import write_atomically
from gym_core.record import plain

FILE = "artifact.json"


@dataclass(frozen=True)
class Artifact:
    """A directory with a model, an adapter, a delta or a library of experience."""

    path: Path
    kind: str = "model"  #: `model`, `adapter`, `delta` or `experience`
    base: str = ""  #: the model an adapter or delta belongs to: a family, an absolute directory or a Hub id
    details: dict[str, Any] = field(default_factory=dict)
    task: str = "causal-lm"  #: what it computes: `causal-lm` is text, see `docs/artifacts.md` for the others

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self) | {"path": str(self.path)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any], holder: Path) -> Self:
        """Return what `to_json` gave, where it lies now: directly in the folder `holder`, or that folder itself."""
        inside = holder / Path(found["path"]).name
        return cls(**{**found, "path": inside if inside.is_dir() else holder})

    def record(self) -> None:
        """Write `artifact.json` into the directory, which can then be exported wherever it is moved to."""
        write_atomically(self.path / FILE, json.dumps(plain(self.to_json() | {"path": "."}), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return what a directory says of itself. Raises GymError where it says nothing, or nothing that can be read."""
        try:
            return cls(**{**json.loads((path / FILE).read_text(encoding="utf-8")), "path": path})
        except FileNotFoundError:
            why = f"there is no {FILE}, so it does not say what it is"
        except (ValueError, TypeError):
            why = f"{FILE} is damaged"
        raise GymError(why, where=str(path), fix="name the output directory of a run, or a checkpoint in it")

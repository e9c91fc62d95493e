"""A run in progress, which every seam is given, and what it made. `gym_core.execution` carries it out."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gym_core.artifact import Artifact
from gym_core.ranks import Ranks
from gym_core.recipe import Recipe
from gym_core.record import RunRecord


@dataclass(frozen=True)
class Outcome:
    """What a finished run made."""

    output: Path
    artifact: Artifact
    exports: tuple[Path, ...] = ()
    repeated: bool = False  #: the run had finished before, and nothing was done
    quiet: bool = False  #: another process of the run says it

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data for `--json`."""
        return {
            "output": str(self.output),
            "artifact": self.artifact.to_json(),
            "exports": [str(path) for path in self.exports],
            "repeated": self.repeated,
        }


@dataclass
class Run:
    """A run in progress: what every seam is given."""

    recipe: Recipe
    output: Path
    record: RunRecord
    resuming: bool = False  #: an earlier process began this run in the same directory
    notes: dict[str, Any] = field(default_factory=dict)  #: whatever phases of one plugin want to hand to each other
    ranks: Ranks = field(default_factory=Ranks)  #: the processes that work on this run

"""A run in progress, which is passed to every hook, and its outcome. `gym_core.execution` executes it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gym_core.artifact import Artifact
from gym_core.ranks import Ranks
from gym_core.recipe import Recipe
from gym_core.record import RunRecord, plain


@dataclass(frozen=True)
class Outcome:
    """The outcome of a finished run."""

    output: Path
    artifact: Artifact
    exports: tuple[Path, ...] = ()
    repeated: bool = False  #: the run had finished before, and nothing was done
    quiet: bool = False  #: another process of the run reports it

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data for `--json`."""
        return {name: value for name, value in plain(asdict(self)).items() if name != "quiet"}


@dataclass
class Run:
    """A run in progress, as it is passed to every hook."""

    recipe: Recipe
    output: Path
    record: RunRecord
    resuming: bool = False  #: whether an earlier process began this run in the same directory
    notes: dict[str, Any] = field(default_factory=dict)  #: for plugins that pass data from one hook to another
    ranks: Ranks = field(default_factory=Ranks)  #: the processes of this run

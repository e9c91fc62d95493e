"""What a tracker is told of a run, and what it does with figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Start:
    """A run that begins, or goes on."""

    output: Path  #: directory of the run
    name: str  #: what it is called
    id: str  #: by which it was known before; empty at first
    settings: Mapping[str, Any]  #: every value of the recipe, by dotted key


class Writer(Protocol):
    """Sends figures. Called from one thread of its own, so it may wait; what it raises ends the tracking, and not the run."""

    @property
    def id(self) -> str:
        """By which the tracker knows the run when it goes on."""
        ...

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Take figures of a step, such as `train/loss` or `eval/loss`."""
        ...

    def close(self, finished: bool) -> None:
        """Send what is left; unless it is `finished`, the run was interrupted or failed, and may go on."""
        ...

"""A file of JSON lines, cut back to where a checkpoint left it: a resumed run writes each line once."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gym_core.files import naming
from gym_core.record import plain
from gym_torch.observer import Observer, Progress


class JsonLines(Observer):
    """Base of observers that append to one file."""

    def __init__(self, path: Path) -> None:
        """Write to a file; what an earlier process left in it stays until `started`."""
        self.path = path
        self.nucleus = 0  #: bytes that belong to the run as far as it was resumed

    def started(self, progress: Progress) -> None:
        """Drop the lines that were written after the checkpoint."""
        self.path.touch()
        os.truncate(self.path, min(self.nucleus, self.path.stat().st_size))

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line, whole; a number that is not finite is null."""
        with naming(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain(record)) + "\n")

    def saving(self, progress: Progress) -> None:
        """Bring all lines to the disk before the checkpoint that counts on them."""
        with naming(self.path), self.path.open("rb") as file:
            os.fsync(file.fileno())

    def state_dict(self) -> dict[str, Any]:
        """Return how much of the file belongs to the checkpoint."""
        return {"bytes": self.path.stat().st_size}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Remember how much to keep."""
        self.nucleus = state["bytes"]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file; a last line that a kill cut short does not count."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

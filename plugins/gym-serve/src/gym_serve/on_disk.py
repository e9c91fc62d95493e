"""Images that a file on the disk of whoever asks names; requests over a network have none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class OnDisk:
    """An image as a row of a file names it: its path, or an object with that."""

    named: Any
    folder: Path  #: in which relative paths begin

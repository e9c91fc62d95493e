"""TensorBoard's event files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gym_track.config import TensorBoard
from gym_track.writer import Start


def opened(config: TensorBoard, start: Start) -> Events:
    """Return what writes into the folder of this run."""
    from tensorboardX import SummaryWriter

    folder = Path(config.folder).expanduser() if config.folder else start.output / "tensorboard"
    written = SummaryWriter(logdir=str(folder), flush_secs=10)
    if not start.id:
        written.add_text("recipe", "```json\n" + json.dumps(dict(start.settings), indent=1, default=str) + "\n```", 0)
    return Events(written, str(folder))


class Events:
    """Writes scalars."""

    def __init__(self, written: Any, id: str) -> None:
        """Write with an open writer."""
        self._written, self.id = written, id

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Write each figure as a scalar."""
        for name, value in figures.items():
            self._written.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close the file."""
        self._written.close()

"""TensorBoard's event files."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from gym_core.files import expanded
from gym_track.config import TensorBoard
from gym_track.writer import Start


def opened(config: TensorBoard, start: Start) -> Events:
    """Return what writes into the folder of this run."""
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.summary import text

    folder = expanded(config.folder) if config.folder else start.output / "tensorboard"
    folder.mkdir(parents=True, exist_ok=True)
    written = Events(EventsWriter(str(folder / "events")), str(folder))
    if not start.id:
        written.write(
            0, text("recipe", "```json\n" + json.dumps(dict(start.settings), indent=1, default=str) + "\n```")
        )
    return written


class Events:
    """Writes scalars. `SummaryWriter` has a queue: what is in it at a kill is lost, and the run that goes on does not know it."""

    def __init__(self, file: Any, id: str) -> None:
        """Write into an open file."""
        self._file, self.id = file, id

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Write each figure as a scalar."""
        from tensorboardX.summary import scalar

        for name, value in figures.items():
            self.write(step, scalar(name, value))
        self._file.flush()

    def write(self, step: int, summary: Any) -> None:
        """Write an event."""
        from tensorboardX.proto.event_pb2 import Event

        self._file.write_event(Event(wall_time=time.time(), step=step, summary=summary))

    def close(self, finished: bool) -> None:
        """Close the file."""
        self._file.close()

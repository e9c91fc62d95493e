"""Trackio. It reads where its files lie once a process, so several runs of one process share the folder of the first."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from gym_track.config import Trackio
from gym_track.writer import Start


def opened(config: Trackio, start: Start) -> Experiment:
    """Return a run of Trackio, the one from before where there is one."""
    os.environ.setdefault("TRACKIO_DIR", str(start.output / "trackio"))
    import trackio

    resume = "allow" if start.id else "never"
    name, project, settings = start.id or start.name, config.project, dict(start.settings)
    return Experiment(
        trackio.init(project=project, name=name, space_id=config.space_id, config=settings, resume=resume)
    )


class Experiment:
    """Logs to an open run."""

    def __init__(self, made: Any) -> None:
        """Log to a run."""
        self._made, self.id = made, str(made.name)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Log figures of a step."""
        self._made.log(dict(figures), step=step)

    def close(self, finished: bool) -> None:
        """Finish the run."""
        self._made.finish()

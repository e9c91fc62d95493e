"""SwanLab."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_track.config import SwanLab
from gym_track.writer import Start


def opened(config: SwanLab, start: Start) -> Experiment:
    """Return an experiment of SwanLab, the one from before where there is one."""
    import swanlab

    folder = config.folder or str(start.output / "swanlog")
    again: dict[str, Any] = {"id": start.id, "resume": "allow"} if start.id else {}
    made = swanlab.init(
        project=config.project,
        workspace=config.workspace,
        experiment_name=start.name,
        config=dict(start.settings),
        logdir=folder,
        mode=config.mode,
        **again,
    )
    return Experiment(made)


class Experiment:
    """Logs to an open experiment."""

    def __init__(self, made: Any) -> None:
        """Log to an experiment."""
        self._made, self.id = made, str(getattr(made, "id", None) or made.public.run_id)  # the latter before 0.8

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Log figures of a step."""
        self._made.log(dict(figures), step=step)

    def close(self, finished: bool) -> None:
        """Finish the experiment."""
        self._made.finish()

"""Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from gym_track.config import WandB
from gym_track.writer import Start


def opened(config: WandB, start: Start) -> Run:
    """Return a run of W&B, the one from before where there is one."""
    import wandb

    mode = os.environ.get("WANDB_MODE") or config.mode
    made = wandb.init(
        project=config.project or os.environ.get("WANDB_PROJECT") or "gym",
        entity=config.entity,
        name=start.name,
        id=start.id or None,
        resume="allow" if start.id else None,
        dir=str(start.output),
        config=dict(start.settings),
        mode=mode,  # type: ignore[arg-type]
        settings=wandb.Settings(console="off", silent=True, login_timeout=15, init_timeout=60),
    )
    return Run(made)


class Run:
    """Logs to an open run."""

    def __init__(self, made: Any) -> None:
        """Log to a run."""
        self._made, self.id = made, str(made.id)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Log figures of a step."""
        self._made.log(dict(figures), step=step)

    def close(self, finished: bool) -> None:
        """Say how the run ended."""
        self._made.finish(exit_code=0 if finished else 1)

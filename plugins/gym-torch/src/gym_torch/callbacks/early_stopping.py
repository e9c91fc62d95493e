"""Ends a run whose validation loss no longer falls."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gym_core import RecipeError, Run
from gym_torch.observer import Observer, Progress, Record

if TYPE_CHECKING:
    from gym_torch.config import EarlyStopping


class EarlyStop(Observer):
    """Counts evaluations without improvement."""

    def __init__(self, config: EarlyStopping, run: Run) -> None:
        """Raise RecipeError where the recipe evaluates only once."""
        if run.recipe.train.eval_every is None:
            raise RecipeError(
                "early stopping needs evaluations",
                key="train.eval_every",
                fix="set `train: {eval_every: 100}`",
            )
        self.config = config
        self.best = math.inf
        self.misses = 0

    def evaluated(self, progress: Progress, record: Record) -> None:
        """Ask for the end when patience is used up."""
        if record["eval_loss"] < self.best - self.config.least:
            self.best, self.misses = record["eval_loss"], 0
            return
        self.misses += 1
        if self.misses >= self.config.patience:
            progress.stop = f"eval_loss has not improved on {self.best:.4f} for {self.misses} evaluations"

    def state_dict(self) -> dict[str, Any]:
        """Return the count; a best value that does not exist yet is None."""
        return {"best": self.best if math.isfinite(self.best) else None, "misses": self.misses}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the count."""
        self.best = math.inf if state["best"] is None else state["best"]
        self.misses = state["misses"]

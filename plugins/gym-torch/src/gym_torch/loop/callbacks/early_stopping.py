"""Ends a run in which what tells the best checkpoint no longer improves on the validation split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from gym_core import RecipeError, Run
from gym_torch.loop.best_metric import PREFIX, best_metric
from gym_torch.observer import Observer, Progress, Record, gain

if TYPE_CHECKING:
    from gym_torch.config import EarlyStopping


class EarlyStop(Observer):
    """Counts evaluations without improvement."""

    needs_evaluations: ClassVar[bool] = True

    def __init__(self, config: EarlyStopping, run: Run) -> None:
        """Raise RecipeError where the recipe evaluates only once."""
        if run.recipe.train.eval_every is None:
            raise RecipeError(
                "early stopping needs evaluations",
                key="train.eval_every",
                fix="set `train: {eval_every: 100}`",
            )
        self.config = config
        by = best_metric(run.recipe)
        self.name, self.better = f"{PREFIX}{by.name}", by.better
        self.best: float | None = None
        self.misses = 0

    def evaluated(self, progress: Progress, record: Record) -> None:
        """Ask for the end when patience is used up; what was measured before the first step is nothing to improve on."""
        if not progress.step:
            return
        if gain(record[self.name], self.best, self.better) > self.config.threshold:
            self.best, self.misses = record[self.name], 0
            return
        self.misses += 1
        if self.misses >= self.config.patience:
            since = "was no number in" if self.best is None else f"has not improved on {self.best:.4f} for"
            progress.stop = f"{self.name} {since} {self.misses} evaluations"

    def state_dict(self) -> dict[str, Any]:
        """Return the count; a best value that does not exist yet is None."""
        return {"best": self.best, "misses": self.misses}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the count."""
        self.best, self.misses = state["best"], state["misses"]

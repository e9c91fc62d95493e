"""What people see of a study: a line for each trial, how the one under way is doing, and the summary at the end."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from rich.status import Status

from gym_core.errors import printable
from gym_tune.metric import Metric, Value
from gym_tune.space import label


class Screen:
    """Prints to standard error; at a terminal the last line follows the trial under way."""

    def __init__(self, metric: Metric, n_trials: int) -> None:
        """Print nothing yet."""
        self.metric, self.n_trials = metric, n_trials
        self.console = Console(stderr=True, highlight=False)
        self._status: Status | None = None
        self._text = ""

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(printable(text), markup=False, soft_wrap=True)

    def begins(self, number: int, values: Mapping[str, Any]) -> None:
        """A trial begins, or goes on."""
        self._text = f"trial {number} of {self.n_trials}: {shown(values)}"
        if self.console.is_terminal:
            self._status = self.console.status(printable(self._text).replace("[", r"\["))
            self._status.start()
        else:
            self.say(self._text)

    def measured(self, value: Value) -> None:
        """The trial under way has a value."""
        if self._status:
            self._status.update(
                printable(f"{self._text}; step {value.step}, {self.metric.name} {value.value:.6g}").replace("[", r"\[")
            )

    def closed(self) -> None:
        """Nothing is under way any more."""
        if self._status:
            self._status.stop()
            self._status = None

    def ended(self, trial: FrozenTrial, best: FrozenTrial | None) -> None:
        """A trial has ended."""
        self.closed()
        compared = f"; best {best.value:.6g} of trial {best.number}" if best else ""
        head = f"{self._text}: " if self.console.is_terminal else f"trial {trial.number}: "
        self.say(f"{head}{how(trial, self.metric)}{compared}")


def how(trial: FrozenTrial, metric: Metric) -> str:
    """Return how a trial ended."""
    steps, seconds = trial.user_attrs.get("steps", 0), trial.user_attrs.get("seconds", 0.0)
    value = f"{metric.name} {trial.value:.6g}" if trial.value is not None else "no value"
    took = f"{steps} steps in {seconds:.0f} s"
    said = {
        TrialState.COMPLETE: f"{value} after {took}",
        TrialState.PRUNED: f"pruned at {value} after {took}",
        TrialState.FAIL: f"failed: {trial.user_attrs.get('reason', '')}",
    }
    return said.get(trial.state, "under way")


def shown(values: Mapping[str, Any]) -> str:
    """Return values as a user would write them, numbers short."""
    parts = []
    for key, value in values.items():
        text = label(value)
        with suppress(TypeError, ValueError):
            text = f"{value:.4g}" if isinstance(value, float) else text
        parts.append(f"{key}={text}")
    return ", ".join(parts)

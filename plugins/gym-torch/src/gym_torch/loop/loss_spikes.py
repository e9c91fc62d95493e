"""Tells a step whose loss or gradient norm is a spike from those before it, before it moves the weights.

PaLM left the samples around spikes out by hand (arXiv:2204.02311, section 5.1); the rule is that of `SkipStepOptimizer` in
OLMo-core: a value that lies more than so many standard deviations above the mean of the last steps. Here the last steps are those
that were taken, so that a spike does not widen what the next one is held to. Loss and norm are those of all processes together,
which each of them knows: they agree without asking.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from gym_core.train import LossSpike

#: What lies no further above the mean, relative to it and of a loss to 1 too, is no spike: values may have been constant, and
#: a loss that is 0 but for its last digits is usual in reinforcement learning.
ROUNDING = 1e-5


class Spike(NamedTuple):
    """A step that stands out, and what it is held to; a limit is infinite while there is nothing to compare with."""

    loss: float
    grad_norm: float
    loss_limit: float
    grad_norm_limit: float
    row: int  #: how many there were one after another, with this one

    def __str__(self) -> str:
        """Return it as people read it."""
        loss = f"loss {self.loss:.4g} (limit {self.loss_limit:.4g})"
        held = f"{loss}, gradient norm {self.grad_norm:.4g} (limit {self.grad_norm_limit:.4g})"
        return f"a spike: {held}" + f", {self.row} of them in a row" * (self.row > 1)

    def record(self) -> dict[str, float]:
        """Return what a line of the log says of it; what is not finite becomes null there."""
        return {f"skipped_{name}": value for name, value in self._asdict().items() if name != "row"}


class LossSpikes:
    """Loss and gradient norm of the last steps that were taken, and how many were skipped in a row."""

    def __init__(self, options: LossSpike) -> None:
        """Begin with no steps."""
        self.options = options
        self.taken: deque[tuple[float, float]] = deque(maxlen=options.window)
        self.row = 0  #: steps skipped one after another, up to now

    def judged(self, loss: float, grad_norm: float) -> Spike | None:
        """Return the spike that a step is, if it is one; what is not finite always is."""
        loss_limit = norm_limit = math.inf
        if len(self.taken) >= self.options.window // 2:
            losses, norms = zip(*self.taken, strict=True)
            loss_limit, norm_limit = self._limit(losses, 1.0), self._limit(norms, 0.0)
        if math.isfinite(loss) and math.isfinite(grad_norm) and loss <= loss_limit and grad_norm <= norm_limit:
            return None
        return Spike(loss, grad_norm, loss_limit, norm_limit, self.row + 1)

    def _limit(self, values: tuple[float, ...], least: float) -> float:
        mean = statistics.fmean(values)
        return mean + max(self.options.threshold * statistics.stdev(values), ROUNDING * (abs(mean) + least))

    def skipped(self) -> bool:
        """Take note of a step that was skipped; return whether the run is to go on."""
        self.row += 1
        return self.row <= self.options.patience

    def passed(self, loss: float, grad_norm: float) -> None:
        """Take note of a step that was taken."""
        self.taken.append((loss, grad_norm))
        self.row = 0

    def state_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"taken": [list(each) for each in self.taken], "row": self.row}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` returned."""
        self.taken.clear()
        self.taken.extend((loss, norm) for loss, norm in state["taken"])
        self.row = state["row"]

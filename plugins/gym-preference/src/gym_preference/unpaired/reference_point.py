"""What the log-ratios of labelled responses are measured from: one number for all responses of a step.

It is known before the step is trained on, so how a step is cut into batches and shared by processes does not change it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from gym_data.examples import UnpairedExample
from gym_preference.unpaired.mismatched_responses import MismatchedResponses
from gym_torch.source import Examples


class ReferencePoint(ABC):
    """Learns the log-ratios of some responses under the policy as a step begins, and makes one number of their sum."""

    name: str  #: that it is logged by
    measured: Examples[UnpairedExample] | None
    """What these responses are, for each sample one with its number; None where none are asked for."""

    @abstractmethod
    def __init__(self, examples: Examples[UnpairedExample], seed: int) -> None:
        """Take the samples of a run, and its seed."""

    @abstractmethod
    def of(self, step: int, total: float, count: float) -> float:
        """Return the number, in nats, for this step, from the sum of these log-ratios and how many they are."""

    @abstractmethod
    def held_out(self, examples: Examples[UnpairedExample], seed: int) -> ReferencePoint:
        """Return what samples that are held out are measured from."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold of it, as plain data."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Take up what `state_dict` returned."""


class MismatchedKL(ReferencePoint):
    """How far the policy has gone from the reference, told by responses to prompts that they do not belong to (KTO)."""

    name = "kl"

    def __init__(self, examples: Examples[UnpairedExample], seed: int) -> None:
        """Draw which response is put to which prompt."""
        self.measured = MismatchedResponses(examples, seed)

    def of(self, step: int, total: float, count: float) -> float:
        """Return the mean, or 0 where it is below: it estimates a KL divergence, which cannot be."""
        return max(0.0, total / count)

    def held_out(self, examples: Examples[UnpairedExample], seed: int) -> ReferencePoint:
        """Return the same over those samples; 0 over a single one, whose prompt has no other response to meet."""
        return MismatchedKL(examples, seed) if len(examples) > 1 else _Known(self.name, lambda: 0.0)


class MeanReward(ReferencePoint):
    """The mean log-ratio of all responses of all steps so far, each as it was when its step began (BCO)."""

    name = "delta"

    def __init__(self, examples: Examples[UnpairedExample], seed: int) -> None:
        """Begin with no responses."""
        self.measured = examples
        # A step may be asked for again: a signal can come before it is trained on, and a checkpoint then holds its responses.
        self.step = -1
        self.before = self.after = (0.0, 0.0)  #: sum and number of all log-ratios, without and with those of `step`

    def of(self, step: int, total: float, count: float) -> float:
        """Return the mean with these responses; without them where their sum is no number, which ends this step, not all
        others.
        """
        if step != self.step:
            self.step, self.before = step, self.after
        self.after = (self.before[0] + total, self.before[1] + count) if isfinite(total) else self.before
        return self.mean

    @property
    def mean(self) -> float:
        """The mean so far; 0 before the first step."""
        return self.after[0] / self.after[1] if self.after[1] else 0.0

    def held_out(self, examples: Examples[UnpairedExample], seed: int) -> ReferencePoint:
        """Return the mean of what was trained on."""
        return _Known(self.name, lambda: self.mean)

    def state_dict(self) -> dict[str, Any]:
        """Return the sums."""
        return {"step": self.step, "before": list(self.before), "after": list(self.after)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the sums."""
        self.step = state["step"]
        self.before, self.after = tuple(state["before"]), tuple(state["after"])


class _Known(ReferencePoint):
    """A number that somebody else knows."""

    measured = None

    def __init__(self, name: str, number: Callable[[], float]) -> None:
        self.name, self.number = name, number

    def of(self, step: int, total: float, count: float) -> float:
        return self.number()

    def held_out(self, examples: Examples[UnpairedExample], seed: int) -> ReferencePoint:
        return self

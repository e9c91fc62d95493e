"""Observers, which the loop notifies of events of a run. They change nothing but `Progress.stop`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, ClassVar, Self

from gym_core import Artifact
from gym_optim.promises import named
from gym_torch.contract_checks import plain_data

Record = Mapping[str, Any]


@dataclass
class Progress:
    """The progress of a run. Written to every checkpoint."""

    total: int  #: optimizer steps of the whole run
    step: int = 0  #: optimizer steps finished
    epoch: float = 0.0  #: passes over the data finished
    tokens: int = 0  #: tokens seen, padding not counted
    samples: int = 0  #: samples seen
    seconds: float = 0.0
    """Time spent on steps, what makes them included, over all processes that worked on the run one after another."""
    evaluated: int = -1  #: step of the last evaluation; -1 before the first
    best_step: int = -1  #: step of the best evaluation so far
    best: float | None = None  #: what it measured of what the algorithm improves
    best_figures: dict[str, float] = field(default_factory=dict)  #: all that it measured
    skipped: list[int] = field(default_factory=list)  #: finished steps that updated nothing, counted from 1
    idle: int = 0  #: finished steps that had nothing to learn from, and updated nothing
    overflowed: int = 0  #: finished steps whose scaled gradients were not finite, and that updated nothing
    loss: float = 0.0  #: sum over the finished steps that updated something of their loss
    figures: dict[str, float] = field(default_factory=dict)
    """First and newest `loss` and what else the algorithm improves, and all of the newest evaluation."""
    stop: str = ""  #: why to end before `total`; an observer may set it

    @property
    def over(self) -> bool:
        """Whether no further step is to be taken."""
        return self.step >= self.total or bool(self.stop)

    @property
    def reached(self) -> tuple[int, int]:
        """The steps that are finished, and the last of them that was evaluated: what a checkpoint may lack."""
        return self.step, self.evaluated

    def summary(self) -> dict[str, Any]:
        """Return the entries of `run.json` under `training` that every way to train has."""
        return {
            "steps": self.step,
            "epochs": self.epoch,
            "tokens": self.tokens,
            "samples": self.samples,
            "mean_loss": self.mean_loss,
            **self.figures,
            "stopped": self.stop or None,
        }

    def figures_of(self, artifact: Artifact) -> dict[str, float]:
        """Return `figures` with what was measured of these weights, where they are those of the best evaluation."""
        best = artifact.details.get("step") == self.best_step
        return self.figures | (self.best_figures if best else {})

    @property
    def mean_loss(self) -> float:
        """Mean of the loss over the steps that updated the weights."""
        return self.loss / max(1, self.scheduled - len(self.skipped) - self.idle)

    @property
    def scheduled(self) -> int:
        """Steps that the learning rate went on by: it waits where gradients overflowed, as in transformers."""
        return self.step - self.overflowed


def steps_of(every: float, total: int) -> int:
    """Return the steps that `every` means in a run of `total` steps; below 1 it is a share of them, rounded up."""
    return int(every) if every >= 1 else max(1, math.ceil(round(every * total, 9)))


def gain(new: float, old: float | None, better: str) -> float:
    """Return by how much a measure of which `lower` or `higher` is better improved; infinite over nothing, unless it is nan."""
    if math.isnan(new):
        return -math.inf
    if old is None:
        return math.inf
    return old - new if better == "lower" else new - old


class Observer:
    """Base of everything that watches a run; each method does nothing until it is overridden.

    Only the first process calls observers. A `Callback` component builds one from `run`.
    """

    needs_evaluations: ClassVar[bool] = False
    """Whether it does nothing where nothing is evaluated; such a run is then refused."""

    def started(self, progress: Progress) -> None:
        """Training begins, or goes on after `progress.step` steps."""

    def stepped(self, progress: Progress) -> None:
        """An optimizer step is finished."""

    def skipped(self, progress: Progress, record: Record) -> None:
        """A step went by without an update, as one of `train.skip_steps` or as a spike: step, epoch, `skipped`, the names of its
        samples, and of a spike what `gym_torch.loop.loss_spikes.Spike.record` returns.
        """

    def logged(self, progress: Progress, record: Record) -> None:
        """A line of `metrics.jsonl` is due: loss, grad_norm, learning_rate, tokens, ..."""

    def evaluated(self, progress: Progress, record: Record) -> None:
        """An evaluation is finished: `eval_` and the name of what the algorithm improves, ..."""

    def saving(self, progress: Progress) -> None:
        """A checkpoint is about to be written: what was observed so far must be on disk."""

    def ended(self, progress: Progress, artifact: Artifact) -> None:
        """Training is over and the artifact is written."""

    def closed(self) -> None:
        """The run is over, in whatever way. Called once, last."""

    def state_dict(self) -> dict[str, Any]:
        """Return, as plain data, what must survive a restart."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` returned in the process that wrote the checkpoint."""


class Observers(Observer):
    """Several observers as one, told in order, each with a record of its own.

    Their states are kept by class name; that of a second one of a class is `EarlyStop-2`. As a context they are closed at its
    end, in whatever way it ends.
    """

    def __init__(self, members: Sequence[Observer]) -> None:
        """Hold the observers."""
        self.members = members

    def __enter__(self) -> Self:
        """Return them."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Tell all that the run is over."""
        self.closed()

    def started(self, progress: Progress) -> None:
        """Tell all."""
        for member in self.members:
            member.started(progress)

    def stepped(self, progress: Progress) -> None:
        """Tell all."""
        for member in self.members:
            member.stepped(progress)

    def skipped(self, progress: Progress, record: Record) -> None:
        """Tell all."""
        for member in self.members:
            member.skipped(progress, dict(record))

    def logged(self, progress: Progress, record: Record) -> None:
        """Tell all."""
        for member in self.members:
            member.logged(progress, dict(record))

    def evaluated(self, progress: Progress, record: Record) -> None:
        """Tell all."""
        for member in self.members:
            member.evaluated(progress, dict(record))

    def saving(self, progress: Progress) -> None:
        """Tell all."""
        for member in self.members:
            member.saving(progress)

    def ended(self, progress: Progress, artifact: Artifact) -> None:
        """Tell all."""
        for member in self.members:
            member.ended(progress, artifact)

    def closed(self) -> None:
        """Tell all."""
        for member in self.members:
            member.closed()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each. Raises PluginError where one is no plain data."""
        return {
            name: plain_data(member.state_dict(), f"{named(member)}.state_dict", "callbacks")
            for name, member in self._named()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hand each its state; one that was not there before starts afresh."""
        for name, member in self._named():
            if name in state:
                member.load_state_dict(state[name])

    def _named(self) -> Iterator[tuple[str, Observer]]:
        """Yield the observers, each with a name of its own."""
        seen: dict[str, int] = {}
        for member in self.members:
            kind = type(member).__name__
            seen[kind] = seen.get(kind, 0) + 1
            yield (kind if seen[kind] == 1 else f"{kind}-{seen[kind]}"), member

"""What an algorithm contributes to a run besides its objective, and the parts of the run that it gets for that.

The assembly (`gym_torch.assembly`) has made everything else before it asks, and uses what it gets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic

from accelerate import Accelerator
from typing_extensions import TypeVar

from gym_core import PluginError, Run, Train
from gym_core.component import construct
from gym_optim.promises import named, promised
from gym_torch.config import TorchAlgorithm
from gym_torch.distributed.ddp import Replicated
from gym_torch.loop.evaluation import HeldOutLoss
from gym_torch.loop.job import Evaluation, Job
from gym_torch.loop.prepared_data import (
    DataInParts,
    Prepared,
    StreamedData,
    measured_apart,
    steps_end_with_epochs,
    streams,
)
from gym_torch.model.adapted import AdaptedModel
from gym_torch.model.loading import LoadedModel
from gym_torch.objective import Objective
from gym_torch.observer import Observer
from gym_torch.packing import Layout
from gym_torch.policy import Policy
from gym_torch.reference import Reference
from gym_torch.source import Dataset, E, E_co, Source, once
from gym_torch.streaming import Streamed

C = TypeVar("C", bound=TorchAlgorithm)
O = TypeVar("O", bound=Objective[Any, Any])  # noqa: E741 - it stands for Objective as C does for configuration
P = TypeVar("P", bound=Policy[Any])


@dataclass(frozen=True)
class Parts(Generic[C, O, P, E_co]):
    """What the assembly has made. Of a run that goes on, the weights are those of the checkpoint already.

    The fourth parameter is the kind of the samples, where it is another one than `gym_torch.batch.Example`.
    """

    run: Run
    config: C  #: the algorithm of the recipe
    model: LoadedModel
    adapted: AdaptedModel
    objective: O
    policy: P  #: not laid out over the processes yet
    data: Prepared[E_co]
    train: Train  #: with a value in place of every `auto`
    spread: Replicated  #: how the policy lies over the processes
    references: tuple[Reference, ...]  #: those of `TorchAlgorithm.further` that do not train, in that order
    resumed: bool  #: whether the run goes on from a checkpoint

    @property
    def layout(self) -> Layout:
        """How samples become batches."""
        return self.model.layout

    @property
    def accelerator(self) -> Accelerator:
        """What knows the device and the processes of this run."""
        return self.spread.accelerator

    @property
    def rank(self) -> int:
        """Number of this process among those with batches of their own: those that share the tokens of a batch have one."""
        return self.spread.rank

    @property
    def world(self) -> int:
        """How many of them there are."""
        return self.spread.world


def _nothing(job: Job) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Contribution:
    """What is trained on, where steps come from, what measures the policy, what watches the run, and what is closed at its
    end.
    """

    objective: Objective[Any, Any]  #: that of `Parts`, or what is made of it
    source: Source
    evaluation: Evaluation | None = None  #: of what is held out; None where nothing is
    observers: Sequence[Observer] = ()  #: beside those of every run; the main process tells them
    resources: Sequence[AbstractContextManager[Any]] = ()
    """What the assembly enters at once, and leaves in reverse order when the run is over, in whatever way."""
    after_resume: Callable[[Job], None] = _nothing
    """Called once before the first step, when the job is where a checkpoint left it, in every process: what must look at all
    samples, such as the scores of a reference, is done here."""


def contributed(parts: Parts[Any, Any, Any]) -> Contribution:
    """Return what the algorithm of a run contributes. Raises PluginError where that is not what a contribution holds."""
    by, key = parts.config.contribution, "algorithm"
    found = promised(construct(by, parts), Contribution, by, key)
    promised(found.objective, Objective, f"{by}, as its objective,", key)  # type: ignore[type-abstract]
    promised(found.source, Source, f"{by}, as its source,", key)  # type: ignore[type-abstract]
    for observer in found.observers:
        promised(observer, Observer, f"{by}, among its observers,", key)
    for resource in found.resources:
        promised(resource, AbstractContextManager, f"{by}, among its resources,", key)  # type: ignore[type-abstract]
    return found


def prepared_data(parts: Parts[Any, Any, Any]) -> Contribution:
    """Return the prepared samples as source, and the loss on those held out: what supervised learning needs."""
    return Contribution(parts.objective, samples(parts), held_out_loss(parts))


def samples(parts: Parts[Any, Any, Any, E]) -> Dataset[E] | Streamed[E]:
    """Return the steps over the prepared samples, also over those that come window by window."""
    if not streams(parts.run.recipe):
        return dataset(parts)
    data = promised(parts.data, StreamedData, "gym_torch.loop.prepared_data", "data")  # type: ignore[type-abstract]
    whole = steps_end_with_epochs(parts.run.recipe)
    return Streamed(data.stream, parts.train, data.fingerprint, parts.layout, whole, float(data.train.lengths.mean()))


def dataset(parts: Parts[Any, Any, Any, E]) -> Dataset[E]:
    """Return the steps over the prepared samples. Raises PluginError where these come window by window."""
    if streams(parts.run.recipe):
        raise PluginError(
            f"{named(parts.config)} asks for all samples at once, and says that it takes them window by window",
            key="data.streaming",
            fix="take them from `gym_torch.contribution.samples`, or leave `streams` out",
        )
    whole = steps_end_with_epochs(parts.run.recipe)
    return Dataset(parts.data.train, parts.train, parts.data.fingerprint, parts.layout, whole)


def held_out_loss(parts: Parts[Any, Any, Any]) -> HeldOutLoss | None:
    """Return what measures the loss on the samples that are held out; None where none are."""
    held_out = parts.data.validation
    if not held_out:
        return None
    step = partial(once, train=parts.train, layout=parts.layout, rank=parts.rank, world=parts.world)
    if not measured_apart(parts.run.recipe):
        return HeldOutLoss(step(held_out))
    data = promised(parts.data, DataInParts, "gym_torch.loop.prepared_data", "data")  # type: ignore[type-abstract]
    return HeldOutLoss(*map(step, data.validation_parts.values()), names=[*data.validation_parts])

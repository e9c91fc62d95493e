"""A job: everything that the loop works with, as the assembly puts it together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from gym_core import Train
from gym_core.ranks import Ranks
from gym_optim.kinds import Optimizer
from gym_optim.promises import named
from gym_torch import contract_checks
from gym_torch.batch import Batch
from gym_torch.distributed.ddp import Replicated
from gym_torch.loop.best_metric import LOSS, BestMetric, check_given
from gym_torch.loop.changeover import Changeover
from gym_torch.loop.log_window import LogWindow
from gym_torch.loop.loss_scale import LossScale
from gym_torch.loop.loss_spikes import LossSpikes
from gym_torch.loop.signals import Signals
from gym_torch.metrics import Metrics
from gym_torch.model.load_balancing import LoadBalancing
from gym_torch.objective import Objective
from gym_torch.observer import Observers, Progress
from gym_torch.source import Source, Step
from gym_torch.trained_part import TrainedPart

Evaluation = Callable[["Job"], Mapping[str, float] | None]
"""Measures the policy on what was held out; the same in every process. None where a signal, or the samples, left nothing."""


def keeps_best(train: Train) -> bool:
    """Whether the checkpoint of the best evaluation is kept."""
    return train.keep_best or train.load_best_model_at_end


@dataclass
class Job:
    """One run, ready to be trained."""

    train: Train
    accelerator: Accelerator
    ranks: Ranks
    spread: Replicated  #: how the policy lies over the processes
    policy: nn.Module  #: a `Policy`, as `spread` wraps it
    objective: Objective[Any, Any]
    optimizer: torch.optim.Optimizer
    optimizer_config: Optimizer  #: what `optimizer` was built from, which says what it can do
    factor: Callable[[int], float]  #: learning-rate factor after so many steps
    source: Source
    evaluation: Evaluation | None  #: None where nothing was held out
    observer: Observers
    save: Callable[[Job], None]  #: write a checkpoint of the job as it is
    signals: Signals
    progress: Progress
    measure: str = "loss"  #: what training improves
    shown: str = "loss"  #: what of its log the screen shows
    best_by: BestMetric = LOSS  #: what tells the best evaluation
    balance: LoadBalancing | None = None  #: of the experts of the policy, whose loss is added to that of each batch
    parts: Sequence[TrainedPart] = ()  #: the adapted model, and what trains beside it
    loss_scale: LossScale | None = None  #: of a run that computes in fp16
    spikes: LossSpikes | None = None  #: of a run that looks for them
    changeover: Changeover | None = None  #: compiles the layers of the policy, before one of the steps
    window: LogWindow = field(default_factory=LogWindow)  #: what was not logged yet
    saved: tuple[int, int] = (-1, -1)  #: `Progress.reached` in the last checkpoint
    last: tuple[int, Step] | None = None  #: the last step that updated the weights in this process, and its number

    def loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Return what the objective makes of a batch. Raises PluginError where that is no loss."""
        found = self.objective.loss(self.policy, batch.to(self.accelerator.device))
        return contract_checks.loss(found, self.objective)

    def weight(self, batch: Batch) -> float:
        """Return what the loss of a batch is divided by. Raises PluginError where that is no number."""
        return contract_checks.number(self.objective.weight(batch), f"{named(self.objective)}.weight", "algorithm")

    def penalty(self) -> Tensor | float:
        """Return what the parts that train add to the loss of a step. Raises PluginError where one returns no scalar."""
        keys = ["adapter", *["algorithm"] * len(self.parts)]
        found = (
            contract_checks.scalar(part.penalty(), f"{named(part)}.penalty", key)
            for part, key in zip(self.parts, keys, strict=False)
        )
        return sum(found)

    def measured(self, evaluation: Evaluation) -> Mapping[str, float] | None:
        """Return what an evaluation measured, if it did.

        Raises PluginError where that is not what training improves, RecipeError where it is not what tells the best.
        """
        found = evaluation(self)
        if found is None:
            return None
        figures = contract_checks.figures(found, self.measure)
        check_given(self.best_by.name, figures)
        return figures

    @property
    def stopped(self) -> bool:
        """Whether a signal came and this process may leave in the middle of a step: others would wait for it."""
        return bool(self.signals.received) and self.accelerator.num_processes == 1

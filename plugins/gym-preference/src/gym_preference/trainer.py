"""The trainer of gym-torch, with a reference beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, cast

import numpy as np

from gym_core import Run
from gym_preference.config import PreferenceAlgorithm, WithReference
from gym_preference.likelihood_displacement import LikelihoodDisplacement
from gym_preference.objective import PreferenceObjective
from gym_preference.reference_log_probs import ReferenceScoring
from gym_torch.model.loading import LoadedModel
from gym_torch.observer import Observer
from gym_torch.packing import Ints
from gym_torch.reference import reference
from gym_torch.source import Dataset, Examples, Step, share
from gym_torch.trainer import Trainer


class PreferenceTrainer(Trainer):
    """Trains on answers that are compared or judged."""

    chosen: ClassVar[str] = "logps/chosen"
    """The metric of how likely the better answers are."""

    def __init__(self, config: PreferenceAlgorithm, run: Run, model: LoadedModel) -> None:
        """Prepare the data and the reference."""
        self.config = config
        super().__init__(config, run, model)
        if isinstance(config, WithReference):
            changed, again = self.found is not None, int(self.order.bounds[-1]) > len(self.data.train)
            ReferenceScoring(config, run, model, self.adapted, self.policy, self.job, changed, again).begin(
                self.answers
            )

    def ready(self) -> None:
        """Give the objective its reference."""
        objective = cast(PreferenceObjective, self.objective)
        if isinstance(objective.config, WithReference):
            named = objective.config.ref_model
            objective.reference = reference(self.policy, self.adapted, self.model, self.run, named)

    @property
    def order(self) -> Dataset:
        """The samples of each step."""
        return cast(Dataset, self.job.source)

    def answers(self) -> Sequence[Step]:
        """Return this process's part of all samples that the reference will be asked about, each once."""
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        return [
            share(examples, used, self.train_options, self.model.layout, rank, world, 1.0)
            for examples, used in self.asked()
        ]

    def asked(self) -> Iterator[tuple[Examples, Ints]]:
        """Yield samples, and which of them the run will learn from or evaluate on."""
        yield self.data.train, np.unique(self.order.samples(0, int(self.order.bounds[-1])))
        if self.data.validation:
            yield self.data.validation, np.arange(len(self.data.validation))

    def _observers(self) -> list[Observer]:
        return [*super()._observers(), LikelihoodDisplacement(self.chosen, self.config.ftx)]

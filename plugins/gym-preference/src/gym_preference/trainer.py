"""The trainer of gym-torch, with a reference beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from gym_core import Run
from gym_preference.collapse import Collapse
from gym_preference.config import Preferring, Referenced
from gym_preference.referring import Referring
from gym_torch.backend import LoadedModel
from gym_torch.observer import Observer
from gym_torch.source import Dataset, Step, once, share
from gym_torch.trainer import Trainer


class PreferenceTrainer(Trainer):
    """Trains on answers that are compared or judged."""

    def __init__(self, config: Preferring, run: Run, model: LoadedModel) -> None:
        """Prepare the data and the reference."""
        super().__init__(config, run, model)
        if isinstance(config, Referenced):
            changed = self.found is not None
            Referring(config, run, model, self.adapted, self.policy, self.job, changed).begin(self.answers)

    def answers(self) -> Sequence[Step]:
        """Return this process's part of all samples that the run will learn from or evaluate on, each once."""
        source = cast(Dataset, self.job.source)
        layout, rank, world = self.model.layout, self.accelerator.process_index, self.accelerator.num_processes
        used = np.unique(source.samples(0, int(source.bounds[-1])))
        train = share(self.data.train, used, self.train_options, layout, rank, world, 1.0)
        held_out = self.data.validation
        return [train, *([once(held_out, self.train_options, layout, rank, world)] if held_out else [])]

    def _observers(self) -> list[Observer]:
        return [*super()._observers(), Collapse()]

"""The trainer of gym-torch, with a reference beside it."""

from __future__ import annotations

from typing import cast

from gym_core import Run
from gym_preference.config import Preferring, Referenced
from gym_preference.objective import PreferenceObjective
from gym_torch.backend import LoadedModel
from gym_torch.reference import reference
from gym_torch.trainer import Trainer


class PreferenceTrainer(Trainer):
    """Trains on answers that are compared or judged."""

    def __init__(self, config: Preferring, run: Run, model: LoadedModel) -> None:
        """Prepare the data and the reference."""
        super().__init__(config, run, model)
        if isinstance(config, Referenced):
            objective = cast(PreferenceObjective, self.job.objective)
            objective.reference = reference(self.policy, self.adapted, model, run.recipe, config.reference_model)

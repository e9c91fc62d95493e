"""A module that an algorithm trains together with the model, such as a value head or a critic.

Its parameters are in the optimizer, in checkpoints and in every process, as those of the model are, and it is saved in the
directory of the trained model. Exporting or merging the model leaves it out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from torch import nn

from gym_torch.trained_part import TrainedPart


class AuxiliaryModule(nn.Module, TrainedPart, ABC):
    """Base of the modules that `gym_torch.objective.Objective.auxiliary_modules` returns; trained parameters are fp32."""

    @abstractmethod
    def save(self, path: Path, exact: bool = False) -> None:
        """Write it into the directory of the model, without pickle; `exact` keeps fp32, so that `restore` is bit-exact."""

    @abstractmethod
    def restore(self, path: Path) -> None:
        """Load what `save` wrote into a directory. Raises GymError where names or shapes differ."""

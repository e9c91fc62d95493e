"""What an algorithm trains beside the model: a module with parameters of its own, such as a value head or a critic.

It is in the optimizer, in checkpoints and in every process as the model is, and lies beside the weights of the model in what
a run makes. Exporting or merging the model leaves it behind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from torch import nn

from gym_torch.trained_part import TrainedPart


class AuxiliaryModule(nn.Module, TrainedPart, ABC):
    """Base of the modules that `gym_torch.objective.Objective.auxiliary_modules` returns; what trains is fp32."""

    @abstractmethod
    def save(self, path: Path, exact: bool = False) -> None:
        """Write it into the directory of the model, without pickle; with `exact` so that `restore` loses no bit."""

    @abstractmethod
    def restore(self, path: Path) -> None:
        """Put back what `save` wrote into a directory. Raises GymError where that is something else."""

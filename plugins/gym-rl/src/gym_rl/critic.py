"""Critics: what says, before each token of a completion, how much reward is still to come.

A critic is a head on the states of the policy, or a model of its own under a head. Either is trained beside the policy.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gym_core import GymError
from gym_rl.policy import RolloutPolicy
from gym_rl.rollouts.batch import RolloutBatch
from gym_torch.auxiliary_module import AuxiliaryModule
from gym_torch.batch import Batch
from gym_torch.checkpoints.tokenizer_files import copy_tokenizer
from gym_torch.further_models import TrainedFurther
from gym_torch.model.hidden_states import hidden_states
from gym_torch.model.scalar_head import FILE, ScalarHead, freeze_lm_head, head_of
from gym_torch.rounding import rounding
from gym_torch.trained_part import FirstStepBatch

FOLDER = "critic"  #: of a critic that is a model of its own, in the directory of the policy


class Critic(AuxiliaryModule):
    """What expects."""

    @abstractmethod
    def forward(self, batch: Batch, states: Callable[[], Tensor]) -> Tensor:
        """Return the value before each target of a batch, `[n]` fp32; `states` returns the policy's there, `[n, dim]`."""


class SharedCritic(Critic):
    """A head on the states of the policy, which learn from both."""

    def __init__(self, head: ScalarHead) -> None:
        """Take the head."""
        super().__init__()
        self.head = head

    def forward(self, batch: Batch, states: Callable[[], Tensor]) -> Tensor:
        """Apply the head."""
        values: Tensor = self.head(states())
        return values

    def save(self, path: Path, exact: bool = False) -> None:
        """Write the head."""
        self.head.save(path, exact)

    def restore(self, path: Path) -> None:
        """Read the head."""
        self.head.restore(path)


class SeparateCritic(Critic):
    """A model of its own under a head, adapted as the policy is."""

    def __init__(self, critic: TrainedFurther) -> None:
        """Take the model, and its value head where it has one.

        Raises GymError where it is a policy whose critic lies beside it.
        """
        super().__init__()
        beside = critic.loaded.path / FOLDER
        if (beside / FILE).is_file():
            raise GymError(
                "this is the policy of a run whose critic lies beside it",
                where=str(critic.loaded.path),
                key="algorithm.critic",
                fix=f"name the critic: {beside}",
            )
        self.base, self.path, self.adapted = critic.loaded.name, critic.loaded.path, critic.adapted
        self.head = head_of(critic.loaded)
        self.model: PreTrainedModel = self.adapted.model
        freeze_lm_head(self.model)

    def forward(self, batch: Batch, states: Callable[[], Tensor]) -> Tensor:
        """Run the model, whose routers choose for themselves, and apply the head."""
        values: Tensor = self.head(hidden_states(self.model, replace(batch, experts=None)))
        return values

    def initialize(self, first_step: Iterable[FirstStepBatch] = ()) -> None:
        """Find the first values of the adapter."""
        self.adapted.initialize(first_step)

    def penalty(self) -> Tensor | float:
        """Return that of the adapter."""
        return self.adapted.penalty()

    def after_step(self, step: int, total: int) -> None:
        """Tell the adapter."""
        self.adapted.after_step(step, total)

    def save(self, path: Path, exact: bool = False) -> None:
        """Write the model, or its adapter, and the head into a folder."""
        (path / FOLDER).mkdir(exist_ok=True)
        self.adapted.save(path / FOLDER, self.base, exact)
        self.head.save(path / FOLDER, exact)
        copy_tokenizer(self.path, path / FOLDER)

    def restore(self, path: Path) -> None:
        """Read them."""
        self.adapted.load(self.adapted.read(path / FOLDER))
        self.head.restore(path / FOLDER)


class ActorCritic(RolloutPolicy):
    """A policy whose critic looks at the same batches."""

    def forward(self, batch: RolloutBatch) -> Tensor:
        """Return what `scored` does, and below it the values before the targets: `[2, n]` or `[3, n]`, fp32."""
        with rounding(batch.tokens.device, self.precision):
            hidden = self.hidden(batch)
            scores = self.scored(batch, hidden)
            return torch.cat([scores.view(-1, len(batch.targets)), self._critic(batch, lambda: hidden)[None]])

    def values(self, batch: Batch) -> Tensor:
        """Return the values alone, `[n]` fp32."""
        with rounding(batch.tokens.device, self.precision):
            found: Tensor = self._critic(batch, lambda: self.hidden(batch))
        return found

    @property
    def _critic(self) -> Critic:
        return cast(Critic, self.auxiliary["critic"])

"""Models that give a number to places of a text: what reward models of outcomes and of steps share.

They know no losses and no rows; where a number stands is said by the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gym_core import Run
from gym_torch.backend import LoadedModel
from gym_torch.batch import Batch
from gym_torch.beside import Beside
from gym_torch.layout import hidden_states
from gym_torch.objective import Objective
from gym_torch.policy import Policy
from gym_torch.scalar_head import ScalarHead, head_of, keep_words


@dataclass(frozen=True)
class ScoredBatch(Batch):
    """A batch, and the tokens at which scores are read."""

    scored: Tensor  #: [n] int64, flat positions (of rows * length)


class Scored(Policy):
    """A linear head on the states of a language model, whose own head is left out."""

    def forward(self, batch: Batch) -> Tensor:
        """Return the scores `[n]` at `batch.scored`, in fp32."""
        places = cast(ScoredBatch, batch).scored
        with torch.autocast(batch.tokens.device.type, torch.bfloat16, enabled=self.bf16):
            scores: Tensor = self.beside["head"](hidden_states(self.model, batch, places))
        return scores


class Scoring(Objective):
    """Base of the objectives of reward models: trains the head too, which lies beside the model or its adapter."""

    policy: ClassVar[type[Policy]] = Scored

    def beside(self, model: PreTrainedModel) -> Mapping[str, Beside]:
        """Return an untrained head."""
        keep_words(model)
        return {"head": ScalarHead.of(model)}

    def load_beside(self, run: Run, model: LoadedModel) -> Mapping[str, Beside]:
        """Return the head that lies beside the weights, to go on from it, or an untrained one."""
        keep_words(model.model)
        return {"head": head_of(model)}


def half_for_ties(difference: Tensor) -> Tensor:
    """Return 1 where a difference is positive, 0 where it is negative, and one half at 0: what accuracy counts."""
    return (difference.sign() + 1) / 2

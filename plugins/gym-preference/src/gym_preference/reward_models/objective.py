"""Models that give numbers to places of responses: what reward models of outcomes and of steps share.

The trained tokens of a response are those at which it is scored. What is trained on the scores is not known here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gym_torch.auxiliary_module import AuxiliaryModule
from gym_torch.further_models import TrainedFurther
from gym_torch.model.loading import LoadedModel
from gym_torch.model.scalar_head import ScalarHead, freeze_lm_head, head_of
from gym_torch.objective import E, Objective
from gym_torch.policy import Policy
from gym_torch.prompt_responses import PromptResponses, ResponseBatch, lay_out
from gym_torch.rounding import rounding


@dataclass(frozen=True, kw_only=True)
class ScoredBatch(ResponseBatch):
    """A batch of responses, and the tokens at which they are scored."""

    scored: Tensor  #: [n] int64, flat positions (of rows * length), response after response


class RewardModelPolicy(Policy[ScoredBatch]):
    """A linear head on the states of a language model, whose own head is left out."""

    def forward(self, batch: ScoredBatch) -> Tensor:
        """Return the scores `[n]` at `batch.scored`, in fp32."""
        with rounding(batch.tokens.device, self.precision):
            scores: Tensor = self.auxiliary["head"](self.hidden(batch, batch.scored))
        return scores


class RewardModelObjective(Objective[ScoredBatch, E], Generic[E]):
    """Base of the objectives of reward models; the head that they train lies beside the model or its adapter."""

    policy: type[Policy[Any]] = RewardModelPolicy
    bias: ClassVar[bool] = True
    """Whether the bias of the head trains."""

    @abstractmethod
    def prompt_responses(self, example: E) -> PromptResponses:
        """Return the prompt and the responses of an example, trained where they are scored."""

    @abstractmethod
    def column(self, examples: Sequence[E]) -> tuple[str, Sequence[float]]:
        """Return what is known of the responses, and its name in `batch.columns`."""

    def auxiliary_modules(self, model: PreTrainedModel) -> Mapping[str, AuxiliaryModule]:
        """Return an untrained head."""
        freeze_lm_head(model)
        return self._head(ScalarHead.of(model))

    def load_auxiliary_modules(
        self, model: LoadedModel, further: Sequence[TrainedFurther] = ()
    ) -> Mapping[str, AuxiliaryModule]:
        """Return the head that lies beside the weights, to go on from it, or an untrained one."""
        freeze_lm_head(model.model)
        return self._head(head_of(model))

    def _head(self, head: ScalarHead) -> Mapping[str, AuxiliaryModule]:
        head.bias.requires_grad_(self.bias)
        return {"head": head}

    def collate(self, examples: Sequence[E]) -> ScoredBatch:
        """Lay out the responses of all examples, those to one prompt behind a single copy of it."""
        groups = [self.prompt_responses(example) for example in examples]
        name, values = self.column(examples)
        batch = lay_out(self.layout, groups, {name: torch.tensor(values, dtype=torch.float32)})
        return ScoredBatch(**vars(batch), scored=batch.places([places for each in groups for places in _places(each)]))


def _places(group: PromptResponses) -> list[list[int]]:
    """Return the trained tokens of each segment, counted from its end."""
    prompt: list[list[int]] = [[]] if len(group.prompt) else []
    return prompt + [(np.flatnonzero(answer.trained) - len(answer.tokens)).tolist() for answer in group.responses]

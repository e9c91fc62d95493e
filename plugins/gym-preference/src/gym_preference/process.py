"""Process reward models: how likely each step of an answer is right, read at the token that ends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gym_data.cache import Steps
from gym_preference.scored import ScoredBatch, Scoring, half_for_ties
from gym_torch.batch import Batch, Example
from gym_torch.objective import Scores


@dataclass(frozen=True)
class StepBatch(ScoredBatch):
    """A batch of answers in steps."""

    labels: Tensor  #: [n] fp32, how likely each scored step is right


class ProcessLoss(Scoring):
    """Binary cross-entropy of the judged steps, each alike whatever answer it is of."""

    def collate(self, examples: Sequence[Example]) -> StepBatch:
        """Lay answers out, each a segment of its own; what is trained of them are the tokens that end judged steps."""
        batch = self.layout.lay_out(examples, ())
        labels = np.concatenate([cast(Steps, example).labels for example in examples]).astype(np.float32)
        return StepBatch(
            **vars(batch),
            scored=batch.places([np.flatnonzero(example.trained).tolist() for example in examples]),
            labels=torch.from_numpy(labels),
        )

    def weight(self, batch: Batch) -> float:
        """Return the number of judged steps."""
        return float(len(cast(StepBatch, batch).labels))

    def loss(self, policy: Scores, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the sum over steps of `-y log sigmoid(s) - (1 - y) log sigmoid(-s)`, and how often it is on the right side."""
        scores, labels = policy(batch), cast(StepBatch, batch).labels
        loss = functional.binary_cross_entropy_with_logits(scores, labels, reduction="sum")
        correct = half_for_ties(scores.detach() * (labels - 0.5))
        right = labels > 0.5
        return loss, {
            "accuracy": correct.sum(),
            "accuracy/right": _mean_of(correct, right),
            "accuracy/wrong": _mean_of(correct, ~right),
            "probability/right": _mean_of(scores.detach().sigmoid(), right),
            "probability/wrong": _mean_of(scores.detach().sigmoid(), ~right),
        }


def _mean_of(values: Tensor, among: Tensor) -> Tensor:
    """Return a sum and how many it is the sum of, `[2]`."""
    return torch.stack([(values * among).sum(), among.sum().to(values.dtype)])

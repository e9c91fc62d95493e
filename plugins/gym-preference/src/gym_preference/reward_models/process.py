"""Process reward models (arXiv:2305.20050): how likely each step of a response is right, read at the token that ends it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from gym_data.examples import Steps
from gym_preference import ProcessRewardModel
from gym_preference.accuracy import accuracies
from gym_preference.reward_models.objective import RewardModelObjective, ScoredBatch
from gym_torch.metrics import Mean, Metrics, Ratio
from gym_torch.objective import Scores
from gym_torch.prompt_responses import PromptResponses

NO_PROMPT = np.zeros(0, dtype=np.int32)


class ProcessLoss(RewardModelObjective[Steps]):
    """Binary cross-entropy of the labelled steps, each alike whatever response it is of."""

    config: ProcessRewardModel
    task: ClassVar[str] = "token-classification"

    def prompt_responses(self, example: Steps) -> PromptResponses:
        """Return the whole of it as a response: what is trained of it are the tokens that end labelled steps."""
        return PromptResponses(NO_PROMPT, (example,))

    def column(self, examples: Sequence[Steps]) -> tuple[str, Sequence[float]]:
        """Return how likely each labelled step is right, `[n]`."""
        return "labels", [label for example in examples for label in example.labels]

    def weight(self, batch: ScoredBatch) -> float:
        """Return the number of labelled steps."""
        return float(len(batch.scored))

    def loss(self, policy: Scores[ScoredBatch], batch: ScoredBatch) -> tuple[Tensor, Metrics]:
        """Return the sum over steps of `-y log sigmoid(s) - (1 - y) log sigmoid(-s)`, and how often `s` is on the right side."""
        scores, labels = policy(batch), batch.columns["labels"]
        loss = binary_cross_entropy_with_logits(scores, labels.to(scores.dtype), reduction="sum")
        chances, right = scores.detach().sigmoid(), labels > 0.5
        correct = accuracies(scores.detach() * (labels - 0.5))
        return loss, {
            "accuracy": Mean(correct.sum()),
            "accuracy/correct": Ratio.of(correct * right, right),
            "accuracy/incorrect": Ratio.of(correct * ~right, ~right),
            "probability/correct": Ratio.of(chances * right, right),
            "probability/incorrect": Ratio.of(chances * ~right, ~right),
        }

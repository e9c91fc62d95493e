"""Reward models of outcomes (arXiv:2203.02155, equation 1): one number for a whole response, read at the token that ends it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from torch import Tensor
from torch.nn.functional import logsigmoid

from gym_data.examples import Pair
from gym_data.tokenizer import Mask
from gym_preference import RewardModel
from gym_preference.accuracy import accuracies
from gym_preference.pairwise import pair_to_prompt_responses
from gym_preference.reward_models.objective import RewardModelObjective, ScoredBatch
from gym_torch.batch import Piece
from gym_torch.inputs_beside import inputs_of
from gym_torch.metrics import Mean, Metrics
from gym_torch.objective import Scores
from gym_torch.prompt_responses import PromptResponses


class RewardLoss(RewardModelObjective[Pair]):
    """The chosen response earns more than the rejected one, by a margin where the rows name one; every pair alike."""

    config: RewardModel
    task: ClassVar[str] = "sequence-classification"
    bias: ClassVar[bool] = False  # it is in no difference of rewards, and the classifiers of transformers have none

    def prompt_responses(self, example: Pair) -> PromptResponses:
        """Return what both sides begin with, and both responses, scored at their last trained tokens."""
        found = pair_to_prompt_responses.prompt_responses(example)
        last = [Piece(each.id, each.tokens, _last(each.trained), *inputs_of(each)) for each in found.responses]
        return found._replace(responses=tuple(last))

    def column(self, examples: Sequence[Pair]) -> tuple[str, Sequence[float]]:
        """Return the margins `[pairs]`."""
        return "margin", [example.margin for example in examples]

    def weight(self, batch: ScoredBatch) -> float:
        """Return the number of pairs."""
        return batch.responses / 2

    def loss(self, policy: Scores[ScoredBatch], batch: ScoredBatch) -> tuple[Tensor, Metrics]:
        """Return the sum over pairs of `-log sigmoid(w - l - margin) + center_rewards_coefficient (w + l)^2`, and what the
        responses earn.
        """
        scores, margins = policy(batch), batch.columns["margin"]
        chosen, rejected = scores[0::2], scores[1::2]
        losses = (
            -logsigmoid(chosen - rejected - margins)
            + self.config.center_rewards_coefficient * (chosen + rejected).square()
        )
        apart = (chosen - rejected).detach()
        return losses.sum(), {
            "accuracy": Mean(accuracies(apart).sum()),
            "margin": Mean(apart.sum()),
            "rewards/chosen": Mean(chosen.detach().sum()),
            "rewards/rejected": Mean(rejected.detach().sum()),
            "mean_reward": Mean(scores.detach().sum() / 2),
        }


def _last(trained: Mask) -> Mask:
    """Return the last true one alone."""
    only = np.zeros_like(trained)
    only[np.flatnonzero(trained)[-1]] = True
    return only

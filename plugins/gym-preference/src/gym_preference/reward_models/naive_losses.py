"""The losses of reward models once more, slow and obvious, for tests to compare with. Shares no code with the objectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gym_data.examples import Pair, Steps
from gym_preference import ProcessRewardModel, RewardModel
from gym_torch.auxiliary_module import AuxiliaryModule


def reward_model(
    config: RewardModel, model: PreTrainedModel, examples: Sequence[Pair], auxiliary: Mapping[str, AuxiliaryModule]
) -> Tensor:
    """Return `-log sigmoid(r(chosen) - r(rejected) - margin) + center_rewards_coefficient (r(chosen) + r(rejected))^2`, summed
    over pairs.
    """
    total = torch.zeros((), dtype=torch.float64)
    for example in examples:
        tokens, trained = example.tokens.tolist(), example.trained.tolist()
        end = example.shared + example.chosen
        rewards = []
        for start, stop in ((example.shared, end), (end, len(tokens))):
            text = tokens[: example.shared] + tokens[start:stop]
            last = max(place for place in range(start, stop) if trained[place])
            rewards.append(_score(model, auxiliary, text)[example.shared + last - start])
        better, worse = rewards
        total = total - torch.log(1 / (1 + torch.exp(-(better - worse - example.margin))))
        total = total + config.center_rewards_coefficient * (better + worse) ** 2
    return total


def process_reward_model(
    config: ProcessRewardModel,
    model: PreTrainedModel,
    examples: Sequence[Steps],
    auxiliary: Mapping[str, AuxiliaryModule],
) -> Tensor:
    """Return the cross-entropy of each labelled step, summed."""
    total = torch.zeros((), dtype=torch.float64)
    for example in examples:
        scores = _score(model, auxiliary, example.tokens.tolist())
        ends = [place for place, judged in enumerate(example.trained.tolist()) if judged]
        for place, label in zip(ends, example.labels, strict=True):
            right = 1 / (1 + torch.exp(-scores[place]))
            total = total - label * torch.log(right) - (1 - label) * torch.log(1 - right)
    return total


def _score(model: PreTrainedModel, auxiliary: Mapping[str, AuxiliaryModule], tokens: list[int]) -> Tensor:
    """Return the number that the head makes of every state, `[length]`."""
    states = model.base_model(input_ids=torch.tensor([tokens])).last_hidden_state[0]
    weight, bias = auxiliary["head"].parameters()
    return states @ weight[0] + bias[0]

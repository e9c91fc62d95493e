"""The losses of labelled responses once more, slow and obvious, for tests to compare with. Shares no code with `unpaired.losses`.

Without a trainer there is no reference, and nothing to measure from: both are 0 here and there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gym_data.examples import UnpairedExample
from gym_preference.unpaired.config.bco import BCO
from gym_preference.unpaired.config.kto import KTO


def kto(config: KTO, model: PreTrainedModel, examples: Sequence[UnpairedExample]) -> Tensor:
    """Return the sum of what the values of responses lack to the most they can be."""
    total = torch.zeros((), dtype=torch.float64)
    for one in examples:
        reward = config.beta * _log_prob(model, one)
        if one.desirable:
            total = total + config.desirable_weight * (1 - 1 / (1 + torch.exp(-reward))) + config.ftx * _nll(model, one)
        else:
            total = total + config.undesirable_weight * (1 - 1 / (1 + torch.exp(reward)))
    return total


def bco(config: BCO, model: PreTrainedModel, examples: Sequence[UnpairedExample]) -> Tensor:
    """Return the cross entropy of a classifier whose logits are the rewards."""
    total = torch.zeros((), dtype=torch.float64)
    for one in examples:
        reward = config.beta * _log_prob(model, one)
        total = total + torch.log(1 + torch.exp(-reward if one.desirable else reward))
        total = total + (config.ftx * _nll(model, one) if one.desirable else 0)
    return total


def _log_prob(model: PreTrainedModel, one: UnpairedExample) -> Tensor:
    """Return the log-probability of the trained tokens."""
    tokens = one.tokens.tolist()
    probabilities = torch.softmax(model(input_ids=torch.tensor([tokens])).logits[0], dim=1)
    return sum(
        (torch.log(probabilities[place - 1, tokens[place]]) for place in range(1, len(tokens)) if one.trained[place]),
        torch.zeros((), dtype=torch.float64),
    )


def _nll(model: PreTrainedModel, one: UnpairedExample) -> Tensor:
    """Return the mean negative log-likelihood of the trained tokens."""
    return -_log_prob(model, one) / int(one.trained.sum())

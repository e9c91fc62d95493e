"""The same loss once more, slow and obvious, for tests to compare with. Shares no code with `objective`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gym_torch import TorchAlgorithm
from gym_torch.batch import Example


def next_token(config: TorchAlgorithm, model: PreTrainedModel, examples: Sequence[Example]) -> Tensor:
    """Return the summed negative log-likelihood, one example and one token at a time, in float64."""
    total = torch.zeros((), dtype=torch.float64)
    for example in examples:
        logits = model(input_ids=torch.tensor([example.tokens.tolist()])).logits[0]
        for position in range(1, len(example.tokens)):
            if example.trained[position]:
                probabilities = torch.softmax(logits[position - 1], dim=0)
                total = total - torch.log(probabilities[int(example.tokens[position])])
    return total

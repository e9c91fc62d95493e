"""The same losses once more, slow and obvious, for tests to compare with. Shares no code with `losses` or `objective`.

Without a trainer there is no reference: its log-probabilities are 0 here and there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gym_data.cache import Pair
from gym_preference import DPO


def dpo(config: DPO, model: PreTrainedModel, examples: Sequence[Pair]) -> Tensor:
    """Return the sum of `-log 1 / (1 + exp(-beta (w - l)))`."""
    total = torch.zeros((), dtype=torch.float64)
    for pair in examples:
        chosen, rejected = (sum(tokens) for tokens in _log_probs(model, pair))
        total = total - torch.log(1 / (1 + torch.exp(-config.beta * (chosen - rejected))))
    return total


def _log_probs(model: PreTrainedModel, pair: Pair) -> tuple[list[Tensor], list[Tensor]]:
    """Return the log-probabilities of the learnt tokens of both sides, each read alone from its first token on."""
    middle = pair.shared + pair.chosen
    found = []
    for start, end in ((pair.shared, middle), (middle, len(pair.tokens))):
        tokens = [*pair.tokens[: pair.shared].tolist(), *pair.tokens[start:end].tolist()]
        trained = [False] * pair.shared + pair.trained[start:end].tolist()
        probabilities = torch.softmax(model(input_ids=torch.tensor([tokens])).logits[0], dim=1)
        found.append(
            [torch.log(probabilities[place - 1, tokens[place]]) for place in range(1, len(tokens)) if trained[place]]
        )
    return found[0], found[1]

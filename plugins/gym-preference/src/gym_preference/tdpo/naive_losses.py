"""TDPO once more, slow and obvious, for tests to compare with. Shares no code with `tdpo.losses` or `tdpo.objective`.

Without a trainer the reference is a uniform distribution, here and there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gym_data.examples import Pair
from gym_preference.tdpo.config import TDPO1, TDPO2

Side = tuple[Tensor, Tensor, Tensor]


def tdpo1(config: TDPO1, model: PreTrainedModel, examples: Sequence[Pair]) -> Tensor:
    """Return the sum of `-log sigmoid(beta (w - l - (kl_l - kl_w)))`."""
    total = torch.zeros((), dtype=torch.float64)
    for pair in examples:
        (chosen, chosen_kl, nll), (rejected, rejected_kl, _) = _sides(model, pair)
        margin = chosen - rejected - (rejected_kl - chosen_kl)
        total = total + torch.log(1 + torch.exp(-config.beta * margin)) + config.ftx * nll
    return total


def tdpo2(config: TDPO2, model: PreTrainedModel, examples: Sequence[Pair]) -> Tensor:
    """Return the sum of `-log sigmoid(beta (w - l - alpha (kl_l - kl_w)))`, where `kl_w` is a number."""
    total = torch.zeros((), dtype=torch.float64)
    for pair in examples:
        (chosen, chosen_kl, nll), (rejected, rejected_kl, _) = _sides(model, pair)
        margin = chosen - rejected - config.alpha * (rejected_kl - chosen_kl.item())
        total = total + torch.log(1 + torch.exp(-config.beta * margin)) + config.ftx * nll
    return total


def _sides(model: PreTrainedModel, pair: Pair) -> tuple[Side, Side]:
    """Return of both sides the log-ratio and the KL divergence over the trained tokens, and their mean surprise."""
    middle = pair.shared + pair.chosen
    return _side(model, pair, pair.shared, middle), _side(model, pair, middle, len(pair.tokens))


def _side(model: PreTrainedModel, pair: Pair, start: int, end: int) -> Side:
    tokens = [*pair.tokens[: pair.shared].tolist(), *pair.tokens[start:end].tolist()]
    trained = [False] * pair.shared + pair.trained[start:end].tolist()
    probabilities = torch.softmax(model(input_ids=torch.tensor([tokens])).logits[0], dim=1)
    even = 1 / probabilities.shape[1]
    ratio, kl, surprise = torch.zeros(3, dtype=torch.float64)
    for place in range(1, len(tokens)):
        if trained[place]:
            said = probabilities[place - 1]
            ratio = ratio + torch.log(said[tokens[place]] / even)
            kl = kl + (even * torch.log(even / said)).sum()
            surprise = surprise - torch.log(said[tokens[place]])
    return ratio, kl, surprise / sum(trained[1:])

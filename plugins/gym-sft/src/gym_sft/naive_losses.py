"""The same losses once more, slow and obvious, for tests to compare with. Shares no code with `objective` or `weighted`.

Without a trainer the reference is a uniform distribution, here and there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gym_sft import ASFT, DFT, EAFT, GKD, LearnsTokens
from gym_torch.batch import Example


def next_token(config: LearnsTokens, model: PreTrainedModel, examples: Sequence[Example]) -> Tensor:
    """Return the summed cross entropy with smoothed labels, one example and one token at a time, in float64."""
    total = torch.zeros((), dtype=torch.float64)
    for example in examples:
        logits = model(input_ids=torch.tensor([example.tokens.tolist()])).logits[0]
        for position in range(1, len(example.tokens)):
            if example.trained[position]:
                probabilities = torch.softmax(logits[position - 1], dim=0)
                labels = torch.full_like(probabilities, config.label_smoothing / len(probabilities))
                labels[int(example.tokens[position])] += 1 - config.label_smoothing
                total = total - (labels * torch.log(probabilities)).sum()
    return total


def dynamic(config: DFT, model: PreTrainedModel, examples: Sequence[Example]) -> Tensor:
    """Return the sum of `-p log p`, where the first `p` is a number."""
    return _summed(model, examples, lambda p, token: -p[token].item() * torch.log(p[token]))


def entropy_adaptive(config: EAFT, model: PreTrainedModel, examples: Sequence[Example]) -> Tensor:
    """Return the sum of `-(H/3)^alpha log p`, where `H` is the entropy of the twenty most probable tokens, a number."""

    def term(p: Tensor, token: int) -> Tensor:
        largest = sorted(p.tolist(), reverse=True)[:20]
        shares = [each / sum(largest) for each in largest]
        entropy = -sum(share * math.log(share) for share in shares)
        return -((entropy / 3) ** config.alpha) * torch.log(p[token])

    return _summed(model, examples, term)


def anchored(config: ASFT, model: PreTrainedModel, examples: Sequence[Example]) -> Tensor:
    """Return the sum of `-p log p + alpha KL(uniform || policy)`, where the first `p` is a number."""

    def term(p: Tensor, token: int) -> Tensor:
        even = 1 / len(p)
        kl = (even * torch.log(even / p)).sum()
        return -p[token].item() * torch.log(p[token]) + config.alpha * kl

    return _summed(model, examples, term)


def distilled(config: GKD, model: PreTrainedModel, examples: Sequence[Example]) -> Tensor:
    """Return the sum of the divergence between a uniform teacher and the policy at a temperature, less `ftx log p`."""

    def term(p: Tensor, token: int) -> Tensor:
        sharp = p ** (1 / config.temperature)
        q, even = sharp / sharp.sum(), 1 / len(p)
        mixed = config.beta * even + (1 - config.beta) * q
        if config.beta == 0:
            apart = (even * torch.log(even / q)).sum()
        elif config.beta == 1:
            apart = (q * torch.log(q / even)).sum()
        else:
            forward, backward = (even * torch.log(even / mixed)).sum(), (q * torch.log(q / mixed)).sum()
            apart = config.beta * forward + (1 - config.beta) * backward
        return apart - config.ftx * torch.log(p[token])

    return _summed(model, examples, term)


def _summed(model: PreTrainedModel, examples: Sequence[Example], term: Callable[[Tensor, int], Tensor]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for example in examples:
        logits = model(input_ids=torch.tensor([example.tokens.tolist()])).logits[0]
        for position in range(1, len(example.tokens)):
            if example.trained[position]:
                total = total + term(torch.softmax(logits[position - 1], dim=0), int(example.tokens[position]))
    return total

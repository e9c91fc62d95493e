"""The same losses once more, slow and obvious, for tests to compare with. Shares no code with the others.

Without a trainer the reference gives every answer the log-probability 0, or a uniform distribution where that is asked for; and
its states are 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gym_unlearn.config import RMU


def unlearning(config: Any, model: PreTrainedModel, examples: Sequence[Any]) -> Tensor:
    """Return `gamma` times the summed losses of the answers to forget, and `alpha` times those of the answers to keep."""
    options = config.model_dump()
    total = torch.zeros((), dtype=torch.float64)
    for example in examples:
        distributions = _at_labels(example, model(_tokens(example)).logits[0].softmax(-1))
        labels = [int(token) for token, trained in zip(example.tokens, example.trained, strict=True) if trained]
        terms = [row[token].log() for row, token in zip(distributions, labels, strict=True)]
        if options.get("retain_loss_type") == "KL":
            options["vocabulary"] = distributions.shape[1]
        if not example.desirable:
            total = total + options.get("gamma", 1.0) * forgetting(
                type(config).__name__, options, sum(terms), len(terms)
            )
        elif options.get("retain_loss_type") == "KL":
            even = 1 / distributions.shape[1]
            apart = sum(even * (math.log(even) - row.log()).sum() for row in distributions)
            total = total + options["alpha"] * apart / len(terms)
        else:
            total = total - options.get("alpha", 0.0) * sum(terms) / len(terms)
    return total


def forgetting(name: str, options: dict[str, Any], log_prob: Any, length: int) -> Any:
    """Return the loss of one answer to forget, from its log-probability and the number of its tokens."""
    if name == "NPO":  # log(1 + (p / p_ref)^beta), with p_ref = 1, or that of a uniform distribution
        known = -length * math.log(options["vocabulary"]) if "vocabulary" in options else 0.0
        return 2 / options["beta"] * torch.log(1 + torch.exp(options["beta"] * (log_prob - known)))
    if name == "SimNPO":
        inner = -options["beta"] * log_prob / length - options["beta"] * options["delta"]
        return -2 / options["beta"] * torch.log(1 / (1 + torch.exp(-inner)))
    return log_prob / length


def steering(config: RMU, model: PreTrainedModel, examples: Sequence[Any]) -> Tensor:
    """Return the mean squared distances of states from the direction, and from 0, weighted and summed over the answers."""
    depth = model.config.num_hidden_layers
    layer = config.layer if config.layer is not None else (7 * depth) // 32
    drawn = torch.rand(
        model.config.hidden_size, generator=torch.Generator().manual_seed(model.config.hidden_size), dtype=torch.float64
    )
    aim = config.steering_coeff * drawn / math.sqrt(sum(each * each for each in drawn.tolist()))
    total = torch.zeros((), dtype=torch.float64)
    for example in examples:
        # The last of `hidden_states` has the final norm; the others are what a layer was given.
        every = model(_tokens(example), output_hidden_states=True).hidden_states
        assert layer + 1 < len(every) - 1, "behind the last layer transformers shows normed states"
        found = _at_labels(example, every[layer + 1][0])
        weight, target = (config.alpha, 0 * aim) if example.desirable else (config.gamma, aim)
        total = total + weight * sum(((row - target) ** 2).mean() for row in found) / len(found)
    return total


def _tokens(example: Any) -> Tensor:
    return torch.tensor([example.tokens.tolist()])


def _at_labels(example: Any, rows: Tensor) -> Tensor:
    """Return the rows that predict trained tokens."""
    return torch.stack([rows[place - 1] for place in range(1, len(example.tokens)) if example.trained[place]])

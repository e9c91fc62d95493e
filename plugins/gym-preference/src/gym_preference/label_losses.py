"""Losses of judged answers: one answer to a prompt, and whether it is good. Pure functions of tensors.

A log-ratio is `log p(answer) - log p_reference(answer)`, summed over the tokens of the answer: `[samples]`, in nats.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def kto(
    ratios: Tensor, good: Tensor, kl: Tensor, beta: float, desirable: float = 1.0, undesirable: float = 1.0
) -> Tensor:
    """Return the losses `[samples]` of Kahneman-Tversky optimization (arXiv:2402.01306).

    A desirable answer costs `desirable * (1 - sigmoid(beta * (ratio - kl)))`, an undesirable one
    `undesirable * (1 - sigmoid(beta * (kl - ratio)))`.

    Args:
        ratios: `[samples]`.
        good: `[samples]` bool, whether each answer is desirable.
        kl: `[]` or `[samples]`, where gains turn into losses: how far the policy is from the reference, see `departure`.
        beta: what a nat counts.
        desirable: weight of the good answers.
        undesirable: weight of the others.

    """
    gain = torch.where(good, ratios - kl, kl - ratios)
    weight = torch.where(good, desirable, undesirable).to(ratios.dtype)
    return weight * torch.sigmoid(-beta * gain)  # 1 - sigmoid(x) loses all digits where x is large


def departure(mean: float) -> float:
    """Return how far a policy is from its reference, in nats, by the mean log-ratio of answers to other prompts.

    That mean estimates a KL divergence, which cannot be below 0.
    """
    return max(0.0, mean)


def bco(ratios: Tensor, good: Tensor, shift: Tensor, beta: float) -> Tensor:
    """Return the losses `[samples]` of a binary classifier whose logit is the reward of an answer, less a shift.

    Binary classifier optimization (arXiv:2404.04656): a good answer costs `-log sigmoid(reward - shift)`, another
    `-log sigmoid(shift - reward)`, where the reward is `beta * ratio`.

    Args:
        ratios: `[samples]`.
        good: `[samples]` bool, whether each answer is desirable.
        shift: `[]` or `[samples]`, the mean reward.
        beta: what a nat counts.

    """
    logits = beta * ratios - shift
    return -logsigmoid(torch.where(good, logits, -logits))

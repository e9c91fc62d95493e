"""Losses of labelled responses: one response to a prompt, and whether it is desirable. Pure functions of tensors.

A log-ratio is `log p(response) - log p_reference(response)`, summed over the tokens of the response: `[samples]`, in nats.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def kto(
    ratios: Tensor,
    desirable: Tensor,
    reference_point: Tensor,
    beta: float,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Tensor:
    """Return the losses `[samples]` of Kahneman-Tversky optimization (arXiv:2402.01306).

    A desirable response costs `desirable_weight * (1 - sigmoid(beta * (ratio - reference_point)))`, an undesirable one
    `undesirable_weight * (1 - sigmoid(beta * (reference_point - ratio)))`.

    Args:
        ratios: `[samples]`.
        desirable: `[samples]` bool, whether each response is desirable.
        reference_point: `[]` or `[samples]`, where gains turn into losses: how far the policy is from the reference.
        beta: what a nat counts.
        desirable_weight: what the good responses count.
        undesirable_weight: what the others count.

    """
    gain = torch.where(desirable, ratios - reference_point, reference_point - ratios)
    weight = torch.where(desirable, desirable_weight, undesirable_weight).to(ratios.dtype)
    return weight * torch.sigmoid(-beta * gain)  # 1 - sigmoid(x) loses all digits where x is large


def bco(ratios: Tensor, desirable: Tensor, reference_point: Tensor, beta: float) -> Tensor:
    """Return the losses `[samples]` of a binary classifier whose logit is the reward of a response, less the mean reward.

    Binary classifier optimization (arXiv:2404.04656): a good response costs `-log sigmoid(reward - shift)`, another
    `-log sigmoid(shift - reward)`, where the reward is `beta * ratio` and the shift `beta * reference_point`.

    Args:
        ratios: `[samples]`.
        desirable: `[samples]` bool, whether each response is desirable.
        reference_point: `[]` or `[samples]`, the mean log-ratio.
        beta: what a nat counts.

    """
    logits = beta * (ratios - reference_point)
    return -logsigmoid(torch.where(desirable, logits, -logits))

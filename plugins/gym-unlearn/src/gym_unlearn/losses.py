"""Losses of answers to forget. Pure functions of tensors `[samples]`, in nats.

All take the log-probability of each answer, summed over its tokens, that under the reference, and the number of its tokens.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid


def gradient_ascent(log_probs: Tensor, reference: Tensor, lengths: Tensor) -> Tensor:
    """Return the mean log-probability of the tokens of each answer, `[samples]` (TOFU, arXiv:2401.06121, section 4)."""
    return log_probs / lengths


def npo(log_probs: Tensor, reference: Tensor, lengths: Tensor, beta: float) -> Tensor:
    """Return `-(2 / beta) log sigmoid(-beta (log_probs - reference))`, `[samples]` (arXiv:2404.05868, equation 3)."""
    return -2 / beta * logsigmoid(-beta * (log_probs - reference))


def simnpo(log_probs: Tensor, reference: Tensor, lengths: Tensor, beta: float, delta: float) -> Tensor:
    """Return `-(2 / beta) log sigmoid(-beta log_probs / lengths - beta delta)`, `[samples]` (arXiv:2410.07163, equation 4)."""
    return -2 / beta * logsigmoid(-beta * (log_probs / lengths + delta))

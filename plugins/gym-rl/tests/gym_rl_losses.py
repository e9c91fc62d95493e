"""Losses of tokens and of completions, put together from ratio and clip as the objectives of algorithms are."""

from __future__ import annotations

from torch import Tensor

from gym_rl.formulas.importance_ratio import mean_ratio, sequence_ratio, token_ratio
from gym_rl.formulas.policy_losses import clipped_surrogate, reinforce, vespo_weight


def clipped_tokens(
    log_probs: Tensor, old: Tensor, advantages: Tensor, low: float, high: float, dual: float | None = None
) -> Tensor:
    """Return the loss of each token, `[n]`: PPO, GRPO, Dr. GRPO and DAPO."""
    return clipped_surrogate(token_ratio(log_probs, old), advantages, low, high, dual)


def clipped_completions(
    log_probs: Tensor, old: Tensor, advantages: Tensor, owner: Tensor, count: int, low: float, high: float
) -> Tensor:
    """Return the loss of each completion, `[count]`: GSPO."""
    return clipped_surrogate(mean_ratio(log_probs, old, owner, count), advantages, low, high)


def weighted_completions(log_probs: Tensor, old: Tensor, advantages: Tensor, owner: Tensor, count: int) -> Tensor:
    """Return the loss of each token, `[n]`, for advantages `[n]`: VESPO."""
    ratio = sequence_ratio(log_probs.detach(), old, owner, count)[owner]
    return reinforce(log_probs, vespo_weight(ratio, advantages, (2.0, 3.0), (3.0, 2.0)) * advantages)

"""How much more likely the policy is than the one that sampled, for tokens and for whole completions."""

from __future__ import annotations

from torch import Tensor

from gym_rl.formulas.segment_sums import means, sums

LIMIT = 20.0  #: of a log-ratio in either direction: beyond it nothing is known but that it is far


def log_ratio(log_probs: Tensor, old: Tensor) -> Tensor:
    """Return log pi - log old, `[n]`, within +-20 so that its exponential is finite; -inf on both sides is 0."""
    return (log_probs - old.detach()).nan_to_num(0.0).clamp(-LIMIT, LIMIT)


def token_ratio(log_probs: Tensor, old: Tensor) -> Tensor:
    """Return pi / old of each token, `[n]`."""
    return log_ratio(log_probs, old).exp()


def sequence_ratio(log_probs: Tensor, old: Tensor, owner: Tensor, count: int) -> Tensor:
    """Return pi / old of each completion, `[count]`: the product over its tokens."""
    return sums(log_ratio(log_probs, old), owner, count).clamp(-LIMIT, LIMIT).exp()


def mean_ratio(log_probs: Tensor, old: Tensor, owner: Tensor, count: int) -> Tensor:
    """Return the geometric mean of pi / old over the tokens of each completion, `[count]`: GSPO, arXiv:2507.18071, equation 7."""
    return means(log_ratio(log_probs, old), owner, count).exp()

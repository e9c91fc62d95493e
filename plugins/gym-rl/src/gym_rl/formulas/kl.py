"""Estimates of how far a policy is from its reference, one for each sampled token: `u = log pi - log ref`, all `[n]`.

Schulman, http://joschu.net/blog/kl-approx.html. As a number, k1 and k3 are unbiased for KL(pi || ref). As a term of a loss over
samples of pi, their gradients differ: k3's is that of KL(ref || pi), k2's and k3_is's that of KL(pi || ref), k1's is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from gym_rl.formulas.importance_ratio import log_ratio

MOST_ERROR = 0.2  #: share of the target by which the KL counts as off it, where a coefficient is adapted


def k1(log_probs: Tensor, reference: Tensor, sampled: Tensor) -> Tensor:
    """Return u: unbiased, of high variance, negative at times. It belongs into a reward; its gradient vanishes."""
    return log_ratio(log_probs, reference)


def k2(log_probs: Tensor, reference: Tensor, sampled: Tensor) -> Tensor:
    """Return u^2 / 2: of low variance, biased in the second order; its gradient is that of KL(pi || ref)."""
    return log_ratio(log_probs, reference) ** 2 / 2


def k3(log_probs: Tensor, reference: Tensor, sampled: Tensor) -> Tensor:
    """Return exp(-u) + u - 1: unbiased and never negative; GRPO, arXiv:2402.03300, equation 4."""
    apart = log_ratio(log_probs, reference)
    return (-apart).exp() + apart - 1


def k3_is(log_probs: Tensor, reference: Tensor, sampled: Tensor) -> Tensor:
    """Return k3 times pi / sampler, with its gradient: that of KL(pi || ref); DeepSeek-V3.2, arXiv:2512.02556, section 3.1."""
    return log_ratio(log_probs, sampled).exp() * k3(log_probs, reference, sampled)


#: Each takes log-probabilities of the policy, of the reference and of the policy that sampled, and returns `[n]`.
ESTIMATORS: Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3, "k3_is": k3_is}


def adapted_coefficient(beta: float, kl: float, target: float, completions: int, horizon: float) -> float:
    """Return the KL coefficient after a round of so many completions that was `kl` away from its reference, in nats a completion.

    It grows where that is above the target and shrinks where it is below: Ziegler et al., arXiv:1909.08593, section 2.2. A round
    counts as a horizon at most, so that it stays above 0.
    """
    error = min(max(kl / target - 1.0, -MOST_ERROR), MOST_ERROR)
    return beta * (1.0 + error * min(completions / horizon, 1.0))

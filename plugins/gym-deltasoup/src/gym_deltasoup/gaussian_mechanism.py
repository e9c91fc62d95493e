"""The Gaussian mechanism, accounted for exactly (Balle and Wang 2018, theorem 8; Dong et al. 2019, corollary 1).

Noise of standard deviation `sigma` on a result of L2 sensitivity `D` is `mu`-GDP with `mu = D / sigma`, no more and no less.
Releases compose as `mu = sqrt(sum mu_t^2)`, whatever was chosen after looking at earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import erfc, exp, hypot, inf, log, log1p, pi, sqrt

from gym_core import GymError

FAR = -25.0  #: where `erfc` comes near to the smallest numbers, and a series takes its place


def delta_of(mu: float, epsilon: float) -> float:
    """Return the delta that `mu` has at an epsilon: `Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)`."""
    if mu <= 0:
        return 0.0
    if mu == inf:
        return 1.0
    first, second = _log_phi(mu / 2 - epsilon / mu), epsilon + _log_phi(-mu / 2 - epsilon / mu)
    return max(0.0, exp(first) - exp(second))


def epsilon_of(mu: float, delta: float) -> float:
    """Return the least epsilon that `mu` has at a delta. Raises GymError where delta is no probability above 0."""
    _check_delta(delta)
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    if mu == inf:
        return inf
    high = 1.0
    while delta_of(mu, high) > delta:
        high *= 2
    return _crossing(lambda epsilon: delta_of(mu, epsilon) > delta, 0.0, high)[1]


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest `mu` within an epsilon and a delta. Raises GymError where they allow for nothing."""
    _check_delta(delta)
    if not 0 <= epsilon < inf:
        raise GymError(f"epsilon is {epsilon}", key="epsilon", fix="give a number from 0 on, such as 1")
    high = 1.0
    while delta_of(high, epsilon) <= delta:
        high *= 2
    return _crossing(lambda mu: delta_of(mu, epsilon) <= delta, 0.0, high)[0]


def sigma_of(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Return the least standard deviation of noise that is within an epsilon and a delta."""
    return sensitivity / mu_of(epsilon, delta)


def composed(mus: Iterable[float]) -> float:
    """Return the `mu` of several releases together."""
    return hypot(*mus)


def _crossing(below: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Return two neighbouring numbers, the first of which is below and the second is not."""
    while True:
        half = (low + high) / 2
        if not low < half < high:
            return low, high
        low, high = (half, high) if below(half) else (low, half)


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise GymError(f"delta is {delta}", key="delta", fix="give a probability, far below 1 / contributors")


def _log_phi(x: float) -> float:
    """Return the logarithm of the normal distribution function, also where that is too small for a number."""
    if x > FAR:
        below = 0.5 * erfc(-x / sqrt(2))
        return log(below) if x < 0 else log1p(-0.5 * erfc(x / sqrt(2)))
    square = x * x  # Phi(x) = phi(x) / |x| (1 - 1/x^2 + 3/x^4 - 15/x^6 + 105/x^8 - ...)
    series = 1 - (1 - (3 - (15 - 105 / square) / square) / square) / square
    return -square / 2 - log(-x) - 0.5 * log(2 * pi) + log(series)

"""Whole points out of shares, by the largest remainder: they sum to the pool exactly."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from gym_core import GymError


def apportion(shares: Mapping[str, float], pool: int) -> dict[str, int]:
    """Return whole points for each name, in proportion to its share; where all shares are zero, as even as can be.

    Each gets its quota rounded down, or one point more; points that are left go to the largest remainders, and of equal ones to
    the name that comes first. Fractions are exact. Raises GymError for a share that is negative or no number.
    """
    odd = next((name for name, share in shares.items() if not 0 <= share < float("inf")), None)
    if odd is not None:
        raise GymError(f"the share of {odd} is {shares[odd]}", key="rewards")
    exact = {name: Fraction(share) for name, share in shares.items()}
    total = sum(exact.values(), Fraction(0))
    if total == 0:
        exact, total = dict.fromkeys(exact, Fraction(1)), Fraction(len(exact))
    quotas = {name: share * pool / total for name, share in exact.items()}
    found = {name: int(quota) for name, quota in quotas.items()}
    left = pool - sum(found.values()) if found else 0
    for name in sorted(quotas, key=lambda each: (found[each] - quotas[each], each))[:left]:
        found[name] += 1
    return found

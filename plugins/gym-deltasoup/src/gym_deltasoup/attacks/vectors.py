"""Attacks that know all honest changes, `[honest, coordinates]`, and return what `bad` hostile contributors send."""

from __future__ import annotations

from collections.abc import Callable
from math import floor, inf, nan
from statistics import NormalDist

import torch
from torch import Tensor

TOLERANCE = 1e-3  #: how exactly the furthest point is found
Attack = Callable[[Tensor, int], Tensor]


def sign_flip(honest: Tensor, bad: int, times: float = 10.0) -> Tensor:
    """Minus the mean, enlarged."""
    return (-times * honest.mean(0)).repeat(bad, 1)


def zero(honest: Tensor, bad: int) -> Tensor:
    """Nothing."""
    return torch.zeros_like(honest[:1]).repeat(bad, 1)


def gaussian(honest: Tensor, bad: int, sigma: float = 1000.0, seed: int = 5) -> Tensor:
    """Noise."""
    draw = torch.Generator().manual_seed(seed)
    return sigma * torch.randn(bad, honest.shape[1], generator=draw, dtype=honest.dtype)


def z_max(n: int, f: int) -> float:
    """Return how many standard deviations go unnoticed among `n` contributors, `f` of them hostile.

    Baruch et al. 2019, equation 2: `Phi^-1((n - f - k) / (n - f))`, `k = floor(n/2) + 1 - f`.
    """
    supporters = floor(n / 2) + 1 - f
    return NormalDist().inv_cdf((n - f - supporters) / (n - f))


def alie(honest: Tensor, bad: int, z: float | None = None) -> Tensor:
    """A little is enough: the mean less some standard deviations of each coordinate (arXiv:1902.06156)."""
    away = z_max(len(honest) + bad, bad) if z is None else z
    return (honest.mean(0) - away * honest.std(0)).repeat(bad, 1)


def ipm(honest: Tensor, bad: int, epsilon: float = 0.5) -> Tensor:
    """Inner product manipulation: a little against the mean (arXiv:1903.03936)."""
    return (-epsilon * honest.mean(0)).repeat(bad, 1)


def directions(honest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return where `min_max` and `min_sum` may go: against the mean, against its signs, or against the standard deviation."""
    middle = honest.mean(0)
    return -middle / middle.norm(), -middle.sign(), -honest.std(0)


def min_max(honest: Tensor, bad: int, way: int = 2) -> Tensor:
    """As far as no distance to an honest input is above the largest between two of them (Shejwalkar and Houmansadr 2021)."""
    most = torch.cdist(honest, honest).max()
    return _furthest(honest, bad, way, lambda point: bool((honest - point).norm(dim=1).max() <= most))


def min_sum(honest: Tensor, bad: int, way: int = 2) -> Tensor:
    """As far as the sum of squared distances to honest inputs is not above the largest of an honest one."""
    most = (torch.cdist(honest, honest) ** 2).sum(1).max()
    return _furthest(honest, bad, way, lambda point: bool(((honest - point) ** 2).sum() <= most))


def _furthest(honest: Tensor, bad: int, way: int, fits: Callable[[Tensor], bool]) -> Tensor:
    middle, direction = honest.mean(0), directions(honest)[way]
    low, high = 0.0, 1.0
    while fits(middle + high * direction):
        low, high = high, 2 * high
    while high - low > TOLERANCE:
        half = (low + high) / 2
        low, high = (half, high) if fits(middle + half * direction) else (low, half)
    return (middle + low * direction).repeat(bad, 1)


def mimic(honest: Tensor, bad: int) -> Tensor:
    """Copies of one honest input (arXiv:2006.09365)."""
    return honest[:1].repeat(bad, 1)


def near_mimic(honest: Tensor, bad: int, share: float = 0.3, seed: int = 6) -> Tensor:
    """Copies of one honest input with noise of a share of its norm each, so that no search for equal ones finds them."""
    draw = torch.Generator().manual_seed(seed)
    noise = torch.randn(bad, honest.shape[1], generator=draw, dtype=honest.dtype)
    return honest[:1] + share * honest[0].norm() * noise / noise.norm(dim=1, keepdim=True)


def not_a_number(honest: Tensor, bad: int) -> Tensor:
    """NaN in one coordinate, infinity and a number beyond any weight in others."""
    found = honest[:1].repeat(bad, 1)
    for row, value in enumerate((nan, inf, -inf, 1e30)):
        found[row::4, row] = value
    return found


def sybil(honest: Tensor, bad: int) -> Tensor:
    """Equal small pushes under many names."""
    push = honest.mean(0)
    return (push + 0.5 * honest.std(0) * (-1.0) ** torch.arange(len(push))).repeat(bad, 1)


def replacement(honest: Tensor, bad: int, wanted: Tensor) -> Tensor:
    """Return changes that make the plain mean the wanted one: `(n / f) wanted` (Bagdasaryan et al. 2020, equation 3)."""
    return ((len(honest) + bad) / bad * wanted).repeat(bad, 1)


def strongest(
    attack: Callable[[Tensor, int, float], Tensor],
    aggregate: Callable[[Tensor], Tensor],
    honest: Tensor,
    bad: int,
    evaluations: int = 20,
) -> Tensor:
    """Return an attack at the strength that moves an aggregator furthest: Optimal-ALIE, Optimal-IPM.

    The strength is doubled while that helps, and then moved by ever shorter steps (Shejwalkar and Houmansadr 2021, algorithm 1).

    Args:
        attack: such as `alie` or `ipm`, with its strength as third argument.
        aggregate: what the community does, of all inputs, the hostile ones last.
        honest: `[honest, coordinates]`.
        bad: how many are hostile.
        evaluations: how often the aggregator is asked.

    """
    middle = honest.mean(0)

    def moved(strength: float) -> float:
        return float((aggregate(torch.cat([honest, attack(honest, bad, strength)])) - middle).norm())

    best, most, step, growing = 0.0, moved(0.0), 1.0, True
    for _ in range(evaluations - 1):
        found = moved(best + step)
        if found > most:
            best, most = best + step, found
            step = 2 * step if growing else step
        else:
            growing, step = False, -0.5 * step if step > 0 else -0.8 * step
            if best + step < 0:
                step = -step
    return attack(honest, bad, best)


ATTACKS: dict[str, Attack] = {
    "sign flip": sign_flip,
    "zero": zero,
    "gaussian": gaussian,
    "alie": alie,
    "alie 1.5": lambda honest, bad: alie(honest, bad, 1.5),
    "ipm": ipm,
    "ipm 2": lambda honest, bad: ipm(honest, bad, 2.0),
    "min-max": min_max,
    "min-sum": min_sum,
    "mimic": mimic,
    "near mimic": near_mimic,
    "sybil": sybil,
}
"""Attacks whose vectors are all finite, by name."""

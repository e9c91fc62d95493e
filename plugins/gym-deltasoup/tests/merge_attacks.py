"""What hostile inputs send: functions of the honest ones, `[honest, coordinates]`, to one vector or several, fp64."""

from __future__ import annotations

from collections.abc import Callable
from math import floor, inf, nan

import torch
from scipy.stats import norm
from torch import Tensor


def sign_flip(honest: Tensor, bad: int, times: float = 10.0) -> Tensor:
    """Minus the mean, enlarged."""
    return (-times * honest.mean(0)).repeat(bad, 1)


def gaussian(honest: Tensor, bad: int, sigma: float = 1000.0) -> Tensor:
    """Noise."""
    draw = torch.Generator().manual_seed(5)
    return sigma * torch.randn(bad, honest.shape[1], generator=draw, dtype=honest.dtype)


def z_max(n: int, f: int) -> float:
    """Return how many standard deviations go unnoticed (Baruch et al. 2019, equation 2)."""
    supporters = floor(n / 2) + 1 - f
    return float(norm.ppf((n - f - supporters) / (n - f)))


def alie(honest: Tensor, bad: int, z: float | None = None) -> Tensor:
    """A little is enough: the mean less some standard deviations of each coordinate (arXiv:1902.06156)."""
    away = z_max(len(honest) + bad, bad) if z is None else z
    return (honest.mean(0) - away * honest.std(0)).repeat(bad, 1)


def ipm(honest: Tensor, bad: int, epsilon: float = 0.5) -> Tensor:
    """Inner product manipulation: a little against the mean (arXiv:1903.03936)."""
    return (-epsilon * honest.mean(0)).repeat(bad, 1)


def _furthest(honest: Tensor, direction: Tensor, fits: Callable[[Tensor], bool]) -> Tensor:
    low, high = 0.0, 1.0
    middle = honest.mean(0)
    while fits(middle + high * direction):
        low, high = high, 2 * high
    while high - low > 1e-3:
        half = (low + high) / 2
        low, high = (half, high) if fits(middle + half * direction) else (low, half)
    return middle + low * direction


def _directions(honest: Tensor) -> list[Tensor]:
    middle = honest.mean(0)
    return [-middle / middle.norm(), -middle.sign(), -honest.std(0)]


def min_max(honest: Tensor, bad: int, way: int = 2) -> Tensor:
    """As far as no distance to an honest input is above the largest between two of them (Shejwalkar and Houmansadr 2021)."""
    most = torch.cdist(honest, honest).max()
    found = _furthest(honest, _directions(honest)[way], lambda v: bool((honest - v).norm(dim=1).max() <= most))
    return found.repeat(bad, 1)


def min_sum(honest: Tensor, bad: int, way: int = 2) -> Tensor:
    """As far as the sum of squared distances to honest inputs is not above the largest of an honest one."""
    most = (torch.cdist(honest, honest) ** 2).sum(1).max()
    found = _furthest(honest, _directions(honest)[way], lambda v: bool(((honest - v) ** 2).sum() <= most))
    return found.repeat(bad, 1)


def mimic(honest: Tensor, bad: int) -> Tensor:
    """Copies of one honest input."""
    return honest[:1].repeat(bad, 1)


def not_a_number(honest: Tensor, bad: int) -> Tensor:
    """NaN in one coordinate, infinity and a number beyond any weight in others."""
    found = honest[:1].repeat(bad, 1)
    for row, value in enumerate((nan, inf, -inf, 1e30)):
        found[row::4, row] = value
    return found


def sybil(honest: Tensor, bad: int) -> Tensor:
    """Equal small pushes by many names."""
    push = honest.mean(0)
    push = push + 0.5 * honest.std(0) * (-1.0) ** torch.arange(len(push))
    return push.repeat(bad, 1)


ATTACKS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "sign flip": sign_flip,
    "gaussian": gaussian,
    "alie": alie,
    "alie 1.5": lambda honest, bad: alie(honest, bad, 1.5),
    "ipm": ipm,
    "min-max": min_max,
    "min-sum": min_sum,
    "mimic": mimic,
    "sybil": sybil,
}

"""The numbers that codes can stand for, fitted to blocks of numbers `[blocks, n]`, each block by itself.

Every function takes weights `[blocks or 1, n]`, what the squared error of a number counts, and lowers the sum of them. It returns
a `Fit`. All values of a code are on the scale of the block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

ROUNDS = 30  #: of alternating fits, at most
SETTLED = 1e-5  #: relative change of scales after which a fit is over
CHUNK = 2**22  #: numbers looked at at once
SHRINK = torch.logspace(0, -1.5, 33)  #: factors of the largest number that the ends of a grid are tried at

FINE = torch.linspace(0.93, 1.07, 8)  #: and what the best of these steps is then multiplied by


class Fit(NamedTuple):
    """Codes, and what they stand for."""

    codes: Tensor  #: uint8 `[blocks, n]`
    scales: Tensor  #: fp32 `[blocks, planes]`, the largest first
    zeros: Tensor | None = None  #: of each block, where a grid has zero points


def signs(numbers: Tensor, weights: Tensor, planes: int) -> Fit:
    """Fit `sum_j a_j s_j` with signs s_j, a_1 >= a_2 >= ... >= 0, jointly.

    Alternates between the nearest of the 2^planes levels and the least-squares scales for these signs, from a_j = a_1 / 2^(j - 1)
    on. Of one plane that is the mean of |number|, as BitDelta has it (arXiv:2402.10193). Zero is a positive number.
    """
    choices = _choices(planes).to(numbers.device)
    exact = choices.double()
    first = (numbers.abs() * weights).sum(1) / weights.sum(1).clamp(min=1e-30)
    scales = first[:, None] / 2.0 ** torch.arange(planes, device=numbers.device)
    for _ in range(ROUNDS if planes > 1 else 0):
        counts, sums = _totals(numbers, weights, scales, choices)
        gram = torch.einsum("lj,bl,lk->bjk", exact, counts, exact)
        # blocks of few numbers leave scales open
        gram += torch.diag_embed(gram.diagonal(dim1=1, dim2=2) * 1e-7 + 1e-30)
        found = torch.linalg.solve(gram, (sums @ exact)[..., None])[..., 0]
        found = found.abs().sort(1, descending=True).values.float()
        moved = (found - scales).abs().amax() / found.abs().amax().clamp(min=1e-30)
        scales = found
        if moved < SETTLED:
            break
    return Fit(_coded(numbers, scales, choices), scales)


def ternary(numbers: Tensor, weights: Tensor) -> Fit:
    """Fit `s t` with t of -1, 0, 1, coded as 0, 1, 2.

    Begins with the threshold of TWN (arXiv:1605.04711), 0.7 of the mean of |number|.
    """
    sizes = numbers.abs()
    threshold = 0.7 * (sizes * weights).sum(1) / weights.sum(1).clamp(min=1e-30)
    scale = threshold
    for _ in range(ROUNDS):
        kept = (sizes > threshold[:, None]) * weights
        found = (sizes * kept).sum(1) / kept.sum(1).clamp(min=1e-30)
        settled = (found - scale).abs().amax() <= SETTLED * found.amax()
        scale, threshold = found, found / 2  # the nearest of the three values
        if settled:
            break
    kept = sizes > threshold[:, None]
    return Fit((1 + numbers.sign() * kept).to(torch.uint8), scale[:, None])


def grid(numbers: Tensor, weights: Tensor, bits: int, symmetric: bool, percentile: float | None = None) -> Fit:
    """Fit whole numbers q of `bits` bits: `s (q - (2^bits - 1) / 2)`, or `s (q - z)` with a whole z where not symmetric.

    The step is that of the least error of 33 shrunk ranges, and of a few around it. A percentile of |number| is
    where the ranges begin in place of the largest.
    """
    most = 2**bits - 1
    low, high = _ends(numbers, symmetric, percentile)
    best = torch.full_like(high, torch.inf)
    step, middle = torch.zeros_like(high), torch.zeros_like(high)

    def attempt(tried: Tensor, at: Tensor) -> None:
        nonlocal best, step, middle
        tried = tried.clamp(min=1e-30)
        place = _nearest(numbers, tried, at, most) - at[:, None]
        error = ((numbers - tried[:, None] * place).square() * weights).sum(1)
        better = error < best
        best = torch.where(better, error, best)
        step, middle = torch.where(better, tried, step), torch.where(better, at, middle)

    for factor in SHRINK.tolist():
        width = (high - low) * factor / most
        zero = (-low * factor / width.clamp(min=1e-30)).round().clamp(0, most)
        attempt(width, torch.full_like(width, most / 2) if symmetric else zero)
    coarse, at = step, middle
    for factor in FINE.tolist():
        attempt(coarse * factor, at)
    codes = _nearest(numbers, step, middle, most).to(torch.uint8)
    return Fit(codes, step[:, None], None if symmetric else middle)


def table(fit: Fit, code: str, bits: int) -> Tensor:
    """Return what each code of each block stands for, `[blocks, codes]`."""
    scales = fit.scales
    if code == "signs":
        return scales @ _choices(bits).to(scales).T
    if code == "ternary":
        return scales * torch.tensor([-1.0, 0.0, 1.0], device=scales.device)
    middle = (2**bits - 1) / 2 if fit.zeros is None else fit.zeros[:, None]
    return scales * (torch.arange(2**bits, device=scales.device) - middle)


def _choices(planes: int) -> Tensor:
    """Return the signs of each code `[2^planes, planes]`."""
    codes = torch.arange(2**planes)[:, None] >> torch.arange(planes) & 1
    return codes * 2.0 - 1


def _coded(numbers: Tensor, scales: Tensor, choices: Tensor) -> Tensor:
    """Return the code of the level next to each number, uint8 `[blocks, n]`."""
    ordered, order = (scales @ choices.T).sort(1)
    middles = ((ordered[:, 1:] + ordered[:, :-1]) / 2).contiguous()
    codes = torch.empty(numbers.shape, dtype=torch.uint8, device=numbers.device)
    for part, into in zip(_split(numbers), _split(codes), strict=True):
        into.copy_(order.gather(1, torch.searchsorted(middles, part.contiguous(), right=True)))
    return codes


def _totals(numbers: Tensor, weights: Tensor, scales: Tensor, choices: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights of the numbers that have each code, and their weighted sum, `[blocks, 2^planes]` in float64."""
    codes = _coded(numbers, scales, choices)
    counts = torch.zeros(len(numbers), len(choices), dtype=torch.float64, device=numbers.device)
    sums = torch.zeros_like(counts)
    every = _split(weights.expand(numbers.shape))
    for part, weight, code in zip(_split(numbers), every, _split(codes), strict=True):
        places = code.long()
        counts.scatter_add_(1, places, weight.double())
        sums.scatter_add_(1, places, (part * weight).double())
    return counts, sums


def _split(numbers: Tensor) -> Iterator[Tensor]:
    """Yield a few columns at a time."""
    yield from numbers.split(max(1, CHUNK // max(1, len(numbers))), 1)


def _ends(numbers: Tensor, symmetric: bool, percentile: float | None) -> tuple[Tensor, Tensor]:
    """Return the ends of the widest range of each block."""
    if symmetric:
        high = _percentile(numbers.abs(), percentile)
        return -high, high
    return -_percentile((-numbers).clamp(min=0), percentile), _percentile(numbers.clamp(min=0), percentile)


def _percentile(numbers: Tensor, percentile: float | None) -> Tensor:
    """Return the number of each block that so many percent are not above; by default the largest."""
    count = numbers.shape[1]
    place = count if percentile is None else max(1, min(count, round(count * percentile / 100)))
    return numbers.kthvalue(place, 1).values if place < count else numbers.amax(1)


def _nearest(numbers: Tensor, step: Tensor, middle: Tensor, most: int) -> Tensor:
    return (numbers / step[:, None] + middle[:, None]).round().clamp(0, most)

"""Codes a change of low rank, such as that of a LoRA: its factors in one and two bits.

The factors of a LoRA are known up to an invertible matrix between them, so their signs mean nothing. Those of the singular value
decomposition are unique, and their components lie in the order of what they matter (arXiv:2510.26690). Coded, they no longer are
the best factors for each other: each side in turn is fitted by least squares to the codes of the other, and coded anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from gym_bitdelta.delta import records
from gym_bitdelta.delta.header import LowRank, data_bytes
from gym_bitdelta.delta.records import Record
from gym_bitdelta.fit import levels

NOISE = 1e-6  #: of the energy of a change, which merging in fp32 leaves outside its rank
MORE = 8  #: random directions beyond the rank that is looked for
DROPS = 1e-6  #: of the largest singular value: what is below is rounding


@dataclass(frozen=True)
class Ranked:
    """How factors are coded."""

    energy: float = 0.8  #: share of |change|^2 whose components take two bits
    bits: float = 1.5  #: most bits of a number of the factors on average, without scales
    group: int = 256  #: numbers of a row of a factor that share a scale
    most_rank: int = 256  #: a change of a larger rank is no low-rank one
    turns: int = 8  #: how often a side is fitted to the codes of the other

    def most_leading(self, rank: int) -> int:
        """Return how many components of this many may take two bits."""
        return min(rank, int((self.bits - 1) * rank + 1e-9))

    def most_bytes(self, shape: tuple[int, ...], rank: int, transposed: bool = False) -> int:
        """Return the most bytes that a change of this shape and rank takes."""
        rank = max(1, min(rank, *shape[-2:]))
        leading = self.most_leading(rank)
        entry = LowRank(shape=shape, rank=rank, leading=leading, group=self.group, transposed=transposed)
        return data_bytes({"": entry})


class Factors(NamedTuple):
    """`change = left^T right`, the component with the largest singular value first; each side has its square root."""

    left: Tensor  #: `[stack, rank, out]`
    right: Tensor  #: `[stack, rank, in]`


def of_product(upper: Tensor, lower: Tensor) -> Factors:
    """Return the factors of `B A`, B `[stack, out, rank]` and A `[stack, rank, in]`: QR of both, SVD of the small core."""
    (outer, tall), (inner, wide) = torch.linalg.qr(upper.double()), torch.linalg.qr(lower.mT.double())
    u, sizes, v = torch.linalg.svd(tall @ wide.mT)
    rank = max(1, int((sizes > DROPS * sizes.amax(-1, keepdim=True)).sum(-1).amax()))
    root = sizes[..., :rank].sqrt()[..., None]
    left, right = (outer @ u[..., :rank]).mT * root, (inner @ v.mT[..., :rank]).mT * root
    return Factors(left.float(), right.float())


def factored(change: Tensor, most: int) -> Factors | None:
    """Return the factors of a change `[stack, out, in]` of low rank; None where its rank is above `most`, or near what it can be.

    By random projections, doubling the rank until nothing is left: the change itself is never decomposed.
    """
    limit = min(most, min(change.shape[1:]) // 2)
    whole = float(change.square().sum(dtype=torch.float64))
    draws = torch.Generator().manual_seed(0)
    rank = 8
    while whole and rank < 2 * limit:
        count = min(rank, limit) + MORE
        directions = torch.randn(len(change), change.shape[2], count, generator=draws).to(change)
        basis = torch.linalg.qr(change @ directions).Q
        basis = torch.linalg.qr(change @ (change.mT @ basis)).Q
        lower = basis.mT @ change
        if float((change - basis @ lower).square().sum(dtype=torch.float64)) <= NOISE * whole:
            return _trimmed(basis, lower, limit)
        rank *= 2
    return None


def _trimmed(basis: Tensor, lower: Tensor, limit: int) -> Factors | None:
    """Return factors without the components that are rounding of the merged weights."""
    found = of_product(basis, lower)
    energy = found.left.square().sum(-1) * found.right.square().sum(-1)  # squared singular values
    left = energy.flip(-1).cumsum(-1).flip(-1) / energy.sum(-1, keepdim=True).clamp(min=1e-30)
    rank = max(1, int((left > NOISE).sum(-1).amax()))
    return Factors(found.left[:, :rank], found.right[:, :rank]) if rank <= limit else None


def encode(factors: Factors, shape: tuple[int, ...], how: Ranked, transposed: bool = False) -> Record:
    """Return the record of a change of this shape: the leading components in two bits, the others in one.

    Those are as many as have the share `energy` of it, and no more than `bits` allow. Of the codes of all turns those next to the
    change are kept.
    """
    rank = factors.left.shape[1]
    energy = factors.left.square().sum(-1) * factors.right.square().sum(-1)
    share = energy.cumsum(-1) / energy.sum(-1, keepdim=True).clamp(min=1e-30)
    leading = 0 if how.energy <= 0 else int((share < how.energy - 1e-9).sum(-1).amax()) + 1
    leading = min(leading, how.most_leading(rank))
    entry = LowRank(shape=shape, rank=rank, leading=leading, group=how.group, transposed=transposed)
    sides = [_coded(factor, leading, how.group) for factor in factors]
    best = _fitted(factors, sides)
    for turn in range(how.turns):
        one, other = turn % 2, 1 - turn % 2
        codes = sides[other].values.double()
        moved = _solved(codes @ codes.mT, codes @ factors[other].double().mT @ factors[one].double())
        sides[one] = _coded(moved.float(), leading, how.group)
        best = min(best, _fitted(factors, sides), key=lambda fit: fit.error)
    return records.low_rank(entry, best.codes, best.scales)


class _Coded(NamedTuple):
    """One side in codes."""

    codes: Tensor  #: `[stack, rank, n]`
    scales: Tensor  #: `[stack, rank, groups]`
    values: Tensor  #: `[stack, rank, n]`, what the codes stand for


class _Fitted(NamedTuple):
    """Both sides in codes, the left one with the best gains."""

    error: float  #: squared, less that of no codes at all
    codes: list[Tensor]
    scales: list[Tensor]


def _fitted(factors: Factors, sides: list[_Coded]) -> _Fitted:
    """Return the codes with the gains g of the components for which sum_k g_k l_k r_k^T is next to the change.

    The normal equations: (L L^T * R R^T) g = sum over pairs of (l_j . left_k)(r_j . right_k).
    """
    gram = torch.stack([side.values @ side.values.mT for side in sides]).double().prod(0)
    pairs = [side.values @ factor.mT for side, factor in zip(sides, factors, strict=True)]
    wanted = torch.stack(pairs).double().prod(0).sum(-1, keepdim=True)
    gains = _solved(gram, wanted).clamp(min=0)
    error = float((gains * (gram @ gains - 2 * wanted)).sum())
    scales = [sides[0].scales * gains.float(), sides[1].scales]
    return _Fitted(error, [side.codes for side in sides], scales)


def _solved(gram: Tensor, wanted: Tensor) -> Tensor:
    """Return the solution of normal equations, also where a component is zero."""
    ridge = torch.diag_embed(gram.diagonal(dim1=1, dim2=2) * 1e-7 + 1e-30)
    return torch.linalg.solve(gram + ridge, wanted)


def _coded(factor: Tensor, leading: int, group: int) -> _Coded:
    """Return a factor `[stack, rank, n]` in codes."""
    rank, count = factor.shape[1:]
    padded = functional.pad(factor, (0, -count % group)).unflatten(-1, (-1, group))
    real = functional.pad(torch.ones(count), (0, -count % group)).unflatten(-1, (-1, group)).to(factor)
    codes, scales = torch.zeros(padded.shape, dtype=torch.uint8), torch.zeros(padded.shape[:3])
    for part, bits in ((slice(0, leading), 2), (slice(leading, rank), 1)):
        blocks = padded[:, part].flatten(0, 2)
        if not len(blocks):
            continue
        weights = real.expand(padded[:, part].shape).flatten(0, 2)
        fit = levels.signs(blocks, weights, 1) if bits == 1 else levels.grid(blocks, weights, 2, True)
        found = fit.codes if bits == 1 else (fit.codes >> 1) | (fit.codes & 1) << 1  # the sign in the lowest bit
        codes[:, part] = found.view(padded[:, part].shape)
        scales[:, part] = fit.scales.view(scales[:, part].shape)
    signs = (codes & 1) * 2.0 - 1
    signs[:, :leading] += (codes[:, :leading] >> 1) - 0.5
    values = (signs * scales[..., None]).flatten(2)[..., :count]
    return _Coded(codes.flatten(2)[..., :count].contiguous(), scales, values)

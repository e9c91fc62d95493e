"""Where to clip groups of a weight before rounding, and what makes up for it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gym_quant.config.stored_layout import Scheme
from gym_quant.post_training.grid import Codes, Grid

MOST_REGAIN = 1.25  #: by which scales of a row may be multiplied: what inputs of few tokens say is no more certain
SHRINK, SHRINKS = 1 / 40, 16  #: step by which a magnitude is shrunk, and how many are tried, the first of none
ROUNDS = 4  #: in which the groups of a row are chosen again, at most
AT_ONCE = 2**24  #: numbers of a weight, times the magnitudes tried, that are in memory at once


def best_clip(weight: Tensor, scheme: Scheme, dtype: torch.dtype, moments: Tensor) -> Tensor:
    """Return the magnitude `[rows, groups]` to clip each group of a weight `[rows, columns]` at, by the error of the outputs.

    Each group is first chosen by itself, then all again in turn with what the others of its row are off by, until none changes.
    """
    least = max(1, AT_ONCE // (SHRINKS * weight.shape[1]))
    return torch.cat([_best_clip(rows, scheme, dtype, moments) for rows in weight.split(least)])


def _best_clip(weight: Tensor, scheme: Scheme, dtype: torch.dtype, moments: Tensor) -> Tensor:
    rows, columns = weight.shape
    groups = scheme.groups(columns)
    largest = weight.view(rows, groups, -1).abs().amax(-1)
    mosts = torch.stack([largest * (1 - step * SHRINK) for step in range(SHRINKS)])
    apart = torch.stack(
        [Grid.of(weight, scheme, dtype, most).codes(weight).weight().float() - weight for most in mosts]
    )
    apart = apart.view(SHRINKS, rows, groups, -1)
    inside = moments.view(groups, columns // groups, groups, -1)
    own = torch.stack(
        [((apart[:, :, group] @ inside[group, :, group]) * apart[:, :, group]).sum(-1) for group in range(groups)], -1
    )
    chosen = own.argmin(0)  # [rows, groups]
    now = apart.gather(0, chosen[None, ..., None].expand(1, *apart.shape[1:]))[0]
    for _ in range(ROUNDS if groups > 1 else 0):
        before = chosen.clone()
        for group in range(groups):
            others = now.clone()
            others[:, group] = 0
            pull = others.view(rows, columns) @ moments.view(columns, groups, -1)[:, group]
            errors = own[..., group] + 2 * (apart[:, :, group] * pull).sum(-1)
            chosen[:, group] = errors.argmin(0)
            now[:, group] = apart[chosen[:, group], torch.arange(rows), group]
        if torch.equal(before, chosen):
            break
    return mosts.gather(0, chosen[None])[0]


def unshrunk(codes: Codes, weight: Tensor, moments: Tensor) -> Codes:
    """Return codes whose scales are multiplied, row by row, so that outputs regress on those of the weight with slope 1.

    Clipping makes all outputs smaller by the same part, and such errors add up over layers where those of rounding cancel.
    """
    wanted = weight @ moments
    whole, part = (wanted * weight).sum(1), (wanted * codes.weight().float()).sum(1)
    factor = torch.where((whole > 0) & (part > 0), whole / part, 1.0).clamp(1 / MOST_REGAIN, MOST_REGAIN)
    return replace(codes, scale=(codes.scale.float() * factor[:, None]).to(codes.scale.dtype))

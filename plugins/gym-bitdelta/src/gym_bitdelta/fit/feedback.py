"""Chooses codes column by column, and lets the columns that are left make up for the error (GPTQ, arXiv:2210.17323).

The error is that of the outputs, tr(E H E^T) with H the mean of x x^T over calibration inputs; scales stay those of the fit, and
where each row has its own they are fitted once more to the codes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gym_bitdelta.fit import levels
from gym_bitdelta.fit.blocks import Cut
from gym_bitdelta.fit.levels import Fit
from gym_bitdelta.fit.quant_scheme import Coding

DAMP = 0.01  #: of the mean of the diagonal, added to it
BLOCK = 128  #: columns whose errors are handed on at once


def chosen(change: Tensor, codes: Tensor, fit: Fit, cut: Cut, coding: Coding, moments: Tensor) -> tuple[Tensor, Fit]:
    """Return codes of a matrix `[rows, columns]` with less error of the outputs, and the fit with their scales.

    `codes` and `fit` are those of each number by itself; they are returned where the error would not be less.
    """
    rows, columns = change.shape
    hessian = moments.to(change).double()
    hessian = hessian + torch.eye(columns, dtype=torch.float64) * (DAMP * hessian.diagonal().mean() + 1e-30)
    factor = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(hessian)), upper=True).float()
    values = levels.table(fit, coding.code, coding.bits)  # [blocks, codes]
    owner = _owners(rows, columns, coding)
    size = torch.ones(rows, columns) if cut.outer is None or cut.inner is None else (cut.outer * cut.inner)[0]
    left, found = change.clone(), torch.empty_like(codes)
    for begin in range(0, columns, BLOCK):
        end = min(begin + BLOCK, columns)
        errors = torch.zeros(rows, end - begin)
        for column in range(begin, end):
            level = values[owner[:, column]] * size[:, column, None]
            code = (left[:, column, None] - level).abs().argmin(1)
            found[:, column] = code.to(torch.uint8)
            apart = (left[:, column] - level.gather(1, code[:, None])[:, 0]) / factor[column, column]
            left[:, column:end] -= apart[:, None] * factor[column, column:end]
            errors[:, column - begin] = apart
        left[:, end:] -= errors @ factor[begin:end, end:]
    better = _refitted(change, found, fit, hessian.float()) if _by_row(coding) else fit
    tried = [(codes, fit), (found, fit), (found, better)]
    costs = [_cost(change, one, its, coding, owner, size, hessian.float()) for one, its in tried]
    return tried[min(range(len(tried)), key=costs.__getitem__)]


def _by_row(coding: Coding) -> bool:
    return coding.scales == "row" and coding.code == "signs"


def _refitted(change: Tensor, codes: Tensor, fit: Fit, hessian: Tensor) -> Fit:
    """Return the scales of each row that are best for its codes: a_j = sum_k G^-1_jk (d H s_k), G_jk = s_j H s_k."""
    planes = fit.scales.shape[1]
    signs = torch.stack([(codes >> plane & 1) * 2.0 - 1 for plane in range(planes)], 1)  # [rows, planes, columns]
    seen = signs @ hessian
    gram = (seen @ signs.mT).double()
    gram += torch.diag_embed(gram.diagonal(dim1=1, dim2=2) * 1e-7 + 1e-30)
    scales = torch.linalg.solve(gram, (seen @ change[..., None]).double())[..., 0].float()
    return fit._replace(scales=torch.where((scales > 0).all(1, keepdim=True), scales, fit.scales))


def _cost(
    change: Tensor, codes: Tensor, fit: Fit, coding: Coding, owner: Tensor, size: Tensor, hessian: Tensor
) -> float:
    values = levels.table(fit, coding.code, coding.bits)
    apart = change - values[owner, codes.long()] * size
    return float(((apart @ hessian) * apart).sum(dtype=torch.float64))


def _owners(rows: int, columns: int, coding: Coding) -> Tensor:
    """Return the block that each number belongs to, `[rows, columns]`."""
    row, column = torch.arange(rows)[:, None], torch.arange(columns)[None]
    group = coding.group or columns
    found = {
        "row": row,
        "col": column,
        "group": row * -(-columns // group) + column // group,
    }.get(coding.scales, torch.zeros(1, 1, dtype=torch.int64))
    return found.expand(rows, columns)

"""Codes one weight: chooses rows, granularity and codes, and puts the record of the delta together."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gym_bitdelta.delta import records
from gym_bitdelta.delta.header import Dense, data_bytes
from gym_bitdelta.delta.records import Record
from gym_bitdelta.fit import blocks, feedback, levels
from gym_bitdelta.fit.levels import Fit
from gym_bitdelta.fit.quant_scheme import Coding


class Calibrated(NamedTuple):
    """What is known of the inputs of a weight."""

    importance: Tensor  #: mean square of each input `[in]`
    moments: Tensor | None = None  #: mean of x x^T `[in, in]`; None: codes are chosen number by number


def encode(change: Tensor, coding: Coding, transposed: bool = False, inputs: Calibrated | None = None) -> Record:
    """Return the record of a change `[.., out, in]` in fp32 (`transposed`: `[.., in, out]`) that is coded as asked.

    Nothing that changed: `zero`. Rows of the first dimension that did not change are left out. One bit with many zeros becomes
    three values. Whatever is not smaller than the change itself in fp16 becomes `raw`.
    """
    if not change.any():
        return records.zero(tuple(change.shape))
    if change.dim() not in (2, 3) or not change.numel():
        return records.raw(change, changed_rows(change))
    rows = changed_rows(change)
    held = change if rows is None else change[rows]
    coding = _with_zero(held, coding)
    shape, count = tuple(change.shape), None if rows is None else len(rows)
    matrices = records.matrices(held, transposed)[1]
    best, least = None, torch.inf
    for each in coding.candidates():
        entry = each.entry(shape, transposed, count)
        record, error = _coded(matrices, each, entry, inputs, rows)
        if error < least * (1 - 1e-6):
            best, least = record, error
    assert best is not None
    plain = records.raw(change, rows)
    return plain if data_bytes({"": plain.entry}) <= data_bytes({"": best.entry}) else best


def least_bytes(change: Tensor, coding: Coding, transposed: bool = False) -> int:
    """Return the least bytes that `encode` may need for a change, without coding it."""
    rows = changed_rows(change)
    held = change if rows is None else change[rows]
    shape, count = tuple(change.shape), None if rows is None else len(rows)
    entries = [each.entry(shape, transposed, count) for each in _with_zero(held, coding).candidates()]
    return min(data_bytes({"": entry}) for entry in [*entries, records.raw(change, rows).entry])


def _with_zero(held: Tensor, coding: Coding) -> Coding:
    """Return three values in the place of one bit, which has no zero, where many numbers are zero."""
    sparse = coding.one_bit and (held == 0).float().mean() > coding.sparse
    return coding.three_values if sparse else coding


def changed_rows(change: Tensor) -> Tensor | None:
    """Return the rows of the first dimension that changed; None where leaving the others out saves nothing."""
    if change.dim() < 2:
        return None
    rows = change.flatten(1).any(1).nonzero()[:, 0]
    return None if len(rows) * 1.02 > len(change) else rows


def squared_error(change: Tensor, record: Record) -> float:
    """Return the relative squared error of a record: |change - what it stands for|^2 / |change|^2."""
    whole = float(change.double().square().sum())
    return float((change - record.values()).double().square().sum()) / whole if whole else 0.0


def _coded(
    matrices: Tensor, coding: Coding, entry: Dense, inputs: Calibrated | None, rows: Tensor | None
) -> tuple[Record, float]:
    """Return matrices `[stack, out, in]` as a record, and its weighted error."""
    weights = matrices.new_ones(1, 1, matrices.shape[2])
    if inputs is not None:
        weights = (inputs.importance / inputs.importance.mean().clamp(min=1e-30)).to(matrices).view(1, 1, -1)
    cut = blocks.cut(matrices, weights, coding.scales, coding.group)
    fit = _fitted(cut, coding)
    codes = blocks.join(fit.codes, tuple(matrices.shape), coding.scales)  # type: ignore[arg-type]
    if inputs is not None and inputs.moments is not None and len(matrices) == 1:
        codes, fit = feedback.chosen(matrices[0], codes[0], fit, cut, coding, inputs.moments)
        codes = codes[None]
    scales = fit.scales.T
    if cut.outer is not None and cut.inner is not None:
        every = cut.outer[..., 0] * scales[..., None]  # [planes, stack, rows]
        record = records.dense(entry, codes, records.Scales(every, cut.inner), None, rows)
    else:
        record = records.dense(entry, codes, records.Scales(scales), fit.zeros, rows)
    apart = matrices - records.expanded(record.signs())
    if inputs is not None and inputs.moments is not None:
        return record, float(((apart @ inputs.moments.to(apart)) * apart).sum())
    return record, float((apart.square() * weights).sum(dtype=torch.float64))


def _fitted(cut: blocks.Cut, coding: Coding) -> Fit:
    if coding.code == "signs":
        return levels.signs(cut.numbers, cut.weights, coding.bits)
    if coding.code == "ternary":
        return levels.ternary(cut.numbers, cut.weights)
    return levels.grid(cut.numbers, cut.weights, coding.bits, coding.symmetric, coding.percentile)

"""Numbers as GGUF stores them: which type a weight gets, its bytes, and how far each number may be off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gym_core import GymError

Array = npt.NDArray[np.float32]
BLOCK = 32  #: numbers that share a scale, in every type that `gguf` quantizes to
#: How far a number may be off, as a share of the range of its block: of the largest absolute number, or of largest less smallest.
_OF_LARGEST = {"Q8_0": 1 / 254, "Q5_0": 1 / 16, "Q4_0": 1 / 8}
_OF_RANGE = {"Q5_1": 1 / 62, "Q4_1": 1 / 30}
_ROUNDED = {"F32": 0.0, "F16": 2.0**-11, "BF16": 2.0**-8}  #: how far a number may be off that is rounded by itself
ROOM = 1.05  #: how much worse than plain rounding outputs may be of a search by importances, which knows single numbers as well
_HALF = 2.0**-11  #: of a scale, which is kept in half precision
_TINY = 2.0**-25  #: how far a scale may be off that is too small for all digits of half precision
_STEPS = {"Q8_0": 127}  #: by which a scale is multiplied at most; 32 in other types, with what is added
#: How far a whole weight may be off where scales are searched for, relative (Frobenius).
_SEARCHED = {"Q6_K": 0.1, "Q5_K": 0.15, "Q4_K": 0.25, "Q3_K": 0.4, "Q2_K": 0.7, "IQ4_NL": 0.3}
#: The same of the other types, which importances have searched too: each number off by as much as it may be without them.
_WEIGHED = _SEARCHED | {"Q8_0": 0.025, "Q5_1": 0.2, "Q5_0": 0.36, "Q4_1": 0.4, "Q4_0": 0.71}


def type_for(shape: Sequence[int], wanted: str, keeps: bool) -> Any:
    """Return the type of a weight: the one wanted for matrices with whole blocks, else half precision; fp32 where it `keeps`."""
    import gguf

    if len(shape) < 2 or keeps or wanted == "f32":
        return gguf.GGMLQuantizationType.F32
    if wanted in ("f16", "bf16") or shape[-1] % BLOCK == 0:
        return gguf.GGMLQuantizationType[wanted.upper()]
    return gguf.GGMLQuantizationType.F16


def encoded(name: str, rows: Array, kind: Any, where: str) -> npt.NDArray[Any]:
    """Return the numbers of a weight as a type stores them. Raises GymError where they do not fit into it."""
    import gguf

    with np.errstate(over="ignore"):
        found: npt.NDArray[Any] = gguf.quants.quantize(np.ascontiguousarray(rows), kind)
    largest = float(np.abs(rows).max(initial=0.0))
    if largest > _largest(kind.name):
        raise GymError(
            f"{name} has numbers up to {largest:.3g}, and {kind.name} ends at {_largest(kind.name):.3g}",
            where=where,
            key="export.type",
            fix="export with type=bf16 or type=f32",
        )
    return found


def _largest(kind: str) -> float:
    """Return the largest number that a type holds; scales of blocks are in half precision."""
    half = float(np.finfo(np.float16).max)
    levels = {"F16": 1, "Q8_0": 127, "Q5_0": 16, "Q4_0": 8, "Q5_1": 1, "Q4_1": 1}
    return half * levels[kind] if kind in levels else float(np.finfo(np.float32).max)


def _rounded(rows: Array, kind: str) -> Array:
    """Return numbers as a type has them without importances."""
    import gguf

    found = gguf.GGMLQuantizationType[kind]
    return decoded(gguf.quants.quantize(np.ascontiguousarray(rows), found), found)


def decoded(data: npt.NDArray[Any], kind: Any) -> Array:
    """Return the numbers of a stored weight."""
    import gguf

    return np.asarray(gguf.quants.dequantize(data, kind), dtype=np.float32)


def relative(wanted: Array, found: Array, importances: Array | None = None) -> float:
    """Return how far a weight `[..., n]` is off, relative (Frobenius).

    With importances `[n]`, mean squares of what each column is multiplied by, it is the error of the layer's outputs, for inputs
    that do not correlate.
    """
    columns = 1.0 if importances is None else np.sqrt(importances.astype(np.float64))
    off = float(np.linalg.norm((wanted.astype(np.float64) - found) * columns))
    return off / max(float(np.linalg.norm(wanted.astype(np.float64) * columns)), 1e-300)


def farthest(wanted: Array, found: Array, kind: str, importances: Array | None = None) -> float:
    """Return how far numbers are off as a share of what the type may round: above 1 something is wrong.

    Weights `[..., n]`; a little room is left for sums that were made in another order. A type that searches its scales is
    bounded as a whole. With importances `[n]` every type does, and gives up some of the plain error for that of outputs: both
    are bounded, and that of outputs by what plain rounding makes of it, where `gguf` rounds to the type.
    """
    off = np.abs(wanted.astype(np.float64) - found)
    if not np.isfinite(found).all():
        return float("inf")
    size = np.abs(wanted.astype(np.float64))
    if importances is not None and kind in _WEIGHED:
        bound = _WEIGHED[kind]
        rounded = _WEIGHED.keys() - _SEARCHED
        best = relative(wanted, _rounded(wanted, kind), importances) * ROOM if kind in rounded else bound
        outputs = relative(wanted, found, importances)
        return max(relative(wanted, found) / bound, outputs / max(best, 1e-300))
    if kind in _SEARCHED:
        return relative(wanted, found) / _SEARCHED[kind]
    slack = 1e-6 * (size + (float(np.sqrt((size**2).mean())) if size.size else 0.0))
    if kind in _ROUNDED:
        allowed = _ROUNDED[kind] * size + (_TINY if kind == "F16" else 0.0) + slack
    else:
        blocks = wanted.astype(np.float64).reshape(-1, BLOCK)
        largest = np.abs(blocks).max(axis=1)
        spread = blocks.max(axis=1) - blocks.min(axis=1)
        rounded = _OF_LARGEST.get(kind, 0.0) * largest + _OF_RANGE.get(kind, 0.0) * spread
        room = rounded * 1.001 + 3 * _HALF * (largest + spread) + _STEPS.get(kind, 32) * _TINY
        allowed = np.repeat(room, BLOCK).reshape(wanted.shape) + slack
    return float((off / np.maximum(allowed, 1e-300)).max(initial=0.0)) if off.any() else 0.0

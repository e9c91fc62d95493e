"""Merges vectors in memory. Files are merged by `gym_deltasoup.artifact_merge`, with the same rules and the same checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import Any

import torch
from torch import Tensor

from gym_core import GymError
from gym_deltasoup.config.by_layer import ByLayer, values_of
from gym_deltasoup.kinds import Merger, name_of, require
from gym_deltasoup.merging.rule import Plan, planned
from gym_deltasoup.merging.updates import CHUNK, WHOLE, Changed, Chosen, Updates, Vectors

#: Norm from which a vector holds what is no weight, nor a change of one, and whose square is soon no fp32.
LARGEST = 1e12
THRESHOLD = 0.3  #: share of hostile inputs that robust mergers expect where nobody says how many there are


@dataclass(frozen=True)
class Prepared:
    """A merge before the numbers are combined."""

    updates: Updates  #: the inputs that take part
    plan: Plan
    tolerated: int  #: hostile inputs that the result tolerates
    excluded: Mapping[str, str]  #: inputs that take no part, and why

    def report(self) -> dict[str, Any]:
        """Return what happened, as plain data."""
        told = {"inputs": list(self.updates.ids), "excluded": dict(self.excluded)}
        return {**told, "tolerated_byzantine": self.tolerated, **self.plan.told}


@dataclass(frozen=True)
class MergedVectors:
    """What came of vectors."""

    vector: Tensor  #: `[coordinates]`, of the dtype of the inputs
    report: Mapping[str, Any]

    @property
    def tolerated_byzantine(self) -> int:
        """How many hostile inputs the result tolerates."""
        return int(self.report["tolerated_byzantine"])


def merge_vectors(
    merger: Merger,
    values: Tensor,
    hostile: int | None = None,
    *,
    ids: Sequence[str] | None = None,
    has_base: bool = True,
    weights: Sequence[float] | None = None,
    densities: Sequence[float | None] | None = None,
    trusted: str | None = None,
    evaluate: Callable[[Tensor], float] | None = None,
    announce: Callable[[str], None] | None = None,
    most: int = 4 * CHUNK,
) -> MergedVectors:
    """Merge the rows of a matrix: fp32 or fp64 `[inputs, coordinates]`.

    Args:
        merger: the options.
        values: a vector of each input.
        hostile: how many of them may hold anything; see `expected`.
        ids: names of the inputs; by default their numbers.
        has_base: whether vectors are changes of a base, and not weights.
        weights: of the inputs.
        densities: share of its numbers that stays of each input, None for that of the merger.
        trusted: name of an input that is known to be honest.
        evaluate: says how good a vector is; higher is better.
        announce: is told what has to be said before anything is merged, such as how much noise there will be.
        most: numbers of all inputs together that are looked at in a step.

    Raises GymError where the merger needs more, or other inputs, or some are not finite and it is not robust.

    """
    if values.ndim != 2 or values.dtype not in (torch.float32, torch.float64) or not len(values):
        why = f"vectors are rows of fp32 or fp64, one at least, not {list(values.shape)} in {values.dtype}"
        raise GymError(why.replace("torch.", ""), key="values", fix="stack them, and call `.float()`")
    names = [str(number) for number in range(len(values))] if ids is None else list(ids)
    for key, given in (("ids", names), ("weights", weights), ("densities", densities)):
        if given is not None and len(given) != len(values):
            raise GymError(f"there are {len(given)}, and {len(values)} vectors", key=key, fix="give one for each row")
    check_names(names)
    updates = Vectors(
        values,
        names,
        has_base=has_base,
        weights=weights_of(merger, weights, WHOLE),
        densities=densities_of(merger, densities, WHOLE),
        trusted=trusted_of(merger, names, trusted),
        evaluate=evaluate,
        most=most,
    )
    found = prepared(merger, updates, hostile, announce)
    merged = torch.empty(values.shape[1], dtype=values.dtype)
    for chunk in found.updates.chunks(found.plan.whole_rows):
        merged[chunk.begin : chunk.begin + chunk.values.shape[1]] = found.plan.combine(chunk)
    return MergedVectors(merged, found.report())


def prepared(
    merger: Merger, updates: Updates, hostile: int | None, announce: Callable[[str], None] | None = None
) -> Prepared:
    """Leave out what is not finite, see how many hostile inputs to expect, and plan. Raises GymError where it cannot be."""
    for line in merger.forecast(len(updates.ids), expected(merger, len(updates.ids), hostile), updates.size):
        if announce is not None:
            announce(line)
    broken = not_finite(updates)
    if broken and merger.counts_broken():
        return _without_numbers(merger, updates, hostile, broken)
    if broken and merger.tolerates(len(updates.ids)) == 0:
        name, why = next(iter(broken.items()))
        count = len(updates.ids)
        what = f"tolerates no hostile one of {count} inputs" if merger.tolerates(1000) else "is no robust merger"
        raise GymError(
            f"{name} holds {why}, and {name_of(merger)} {what}",
            key="inputs",
            fix="leave it out, or use byzantine_robust",
        )
    if updates.trusted is not None and updates.ids[updates.trusted] in broken:
        raise GymError(f"the trusted input {updates.ids[updates.trusted]} holds {broken[updates.ids[updates.trusted]]}")
    if len(broken) == len(updates.ids):
        raise GymError(f"all of the {len(broken)} inputs hold numbers that are not finite", key="inputs")
    accepted = updates
    if broken:
        accepted = Chosen(updates, [row for row, name in enumerate(updates.ids) if name not in broken])
    if hostile is not None:
        require(merger, len(updates.ids), hostile)
    tolerated = expected(merger, len(accepted.ids), hostile)
    if broken:  # what was left out is hostile, so fewer hostile inputs are left than were expected
        tolerated = min(tolerated, merger.tolerates(len(accepted.ids)))
    return Prepared(accepted, planned(merger, accepted, tolerated), tolerated, broken)


def _without_numbers(merger: Merger, updates: Updates, hostile: int | None, broken: dict[str, str]) -> Prepared:
    """Let those inputs take part as zero."""
    zero = torch.tensor([name in broken for name in updates.ids])[:, None]
    tolerated = expected(merger, len(updates.ids), hostile)
    kept = Changed(updates, lambda chunk: chunk.values.masked_fill(zero, 0.0))
    return Prepared(kept, planned(merger, kept, tolerated), tolerated, broken)


def expected(merger: Merger, inputs: int, hostile: int | None, threshold: float = THRESHOLD) -> int:
    """Return how many hostile inputs to expect: what was said, or else `floor(threshold * inputs)` of a robust merger.

    A merger that tolerates nobody, however many inputs there are, expects nobody.
    """
    if hostile is not None:
        return hostile
    return floor(threshold * inputs + 1e-9) if merger.tolerates(1000) > 0 else 0


def not_finite(updates: Updates) -> dict[str, str]:
    """Return the inputs that hold what is no number of a weight, and what that is."""
    lengths = updates.lengths().tolist()
    odd = [row for row, length in enumerate(lengths) if not length <= LARGEST]
    if not odd:
        return {}
    chosen = Chosen(updates, odd)
    worst = torch.zeros(len(odd), dtype=torch.float64)
    for chunk in chosen.chunks():
        low, high = chunk.values.aminmax(dim=1)
        worst = torch.maximum(worst, torch.maximum(-low, high).double())  # NaN stays NaN
    return {
        name: "NaN" if size != size else "infinity" if size == float("inf") else f"{size:.3g}"
        for name, size in zip(chosen.ids, worst.tolist(), strict=True)
    }


def check_names(names: Sequence[str]) -> None:
    """Raise GymError where two inputs have one name."""
    twice = sorted({name for name in names if list(names).count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise GymError(f"two inputs are called {twice[0]}", key="inputs", fix="give each contributor one")


def weights_of(
    merger: Merger, weights: Sequence[ByLayer[float] | None] | None, tensors: Sequence[str]
) -> Tensor | None:
    """Return weights as numbers, 1 where an input has none: fp64 `[inputs, tensors]`; None where no input has any.

    Raises GymError where the merger does not look at them, or one is not finite.
    """
    if weights is None or all(each is None for each in weights):
        return None
    if not merger.takes_weights():
        why = f"{name_of(merger)} takes no weights"
        raise GymError(why, key="inputs.weight", fix="leave them out, or use weighted_mean, task_arithmetic or ties")
    found = _table(weights, 1.0, tensors, "inputs.weight")
    if not found.isfinite().all():
        raise GymError("a weight is not finite", key="inputs.weight")
    return found


def densities_of(
    merger: Merger, densities: Sequence[ByLayer[float] | None] | None, tensors: Sequence[str]
) -> Tensor | None:
    """Return densities, NaN where an input has none: fp64 `[inputs, tensors]`; None where no input has any.

    Raises GymError where the merger looks at none, or one is no share.
    """
    if densities is None or all(each is None for each in densities):
        return None
    if not merger.takes_densities():
        why = f"{name_of(merger)} keeps all numbers of a change, and takes no densities"
        raise GymError(why, key="inputs.density", fix="leave them out, or use ties, dare, della or breadcrumbs")
    found = _table(densities, torch.nan, tensors, "inputs.density")
    odd = found[(found <= 0) | (found > 1)]
    if len(odd):
        raise GymError(f"a density is {float(odd[0])}", key="inputs.density", fix="give a share above 0 and up to 1")
    return found


def _table(said: Sequence[ByLayer[float] | None], default: float, tensors: Sequence[str], key: str) -> Tensor:
    rows = [values_of(default if each is None else each, tensors, key) for each in said]
    return torch.tensor(rows, dtype=torch.float64).reshape(len(rows), len(tensors))


def trusted_of(merger: Merger, names: Sequence[str], trusted: str | None) -> int | None:
    """Return the number of the trusted input. Raises GymError where there is none of that name, or nobody looks at it."""
    if trusted is None:
        return None
    if not merger.needs_trusted:
        raise GymError(
            f"{name_of(merger)} looks at no trusted input", key="trusted", fix="leave it out, or use fltrust"
        )
    if trusted not in names:
        raise GymError(f"no input is called {trusted}", key="trusted", fix=f"name one of {', '.join(list(names)[:5])}")
    return list(names).index(trusted)

"""Compares the lines of `metrics.jsonl` of two runs, step by step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gym_drill.run_difference import timeless

JUDGED = ("loss", "grad_norm")  #: metrics that tell whether two runs are the same within rounding; so does `eval_loss`

Lines = Sequence[Mapping[str, Any]]


class Curves(NamedTuple):
    """How two curves differ."""

    compared: int  #: lines
    first: dict[str, Any]  #: `step`, `metric`, `then` and `here` of the first difference; empty where there is none
    judged: dict[str, Any]  #: the same of the first difference of what is judged, in training and in evaluation
    largest: dict[
        str, float
    ]  #: largest relative difference of each metric that is judged; a line that one side lacks is infinite


def compared(then: Lines, here: Lines, steps: int | None = None) -> Curves:
    """Compare two curves, up to a step; lines that a shorter run has at its end alone do not count."""
    left, right = (_by_place(lines, steps) for lines in (then, here))
    if steps is not None:  # an end brings a line and an evaluation of its own
        right = {place: line for place, line in right.items() if place in left or place[0] < steps}
    first: dict[str, Any] = {}
    judged: dict[str, Any] = {}
    largest = dict.fromkeys(JUDGED, 0.0)
    for place in sorted({*left, *right}):
        one, other = (timeless(dict(side.get(place, {}))) for side in (left, right))
        lone = not (one and other)
        told_of = {*one, *other} - ({"step", "epoch"} if lone else set())
        for metric in sorted(told_of, key=lambda name: (not _judges(name), name != JUDGED[0], name)):
            was, now = one.get(metric), other.get(metric)
            if was == now and (metric in one) == (metric in other):
                continue
            told = {"step": place[0], "metric": metric, "then": was, "here": now}
            first = first or told
            if lone or _judges(metric):
                judged = judged or told
                largest[metric] = max(largest.get(metric, 0.0), _apart(was, now))
    return Curves(len({*left, *right}), first, judged, largest)


def _by_place(lines: Lines, steps: int | None) -> dict[tuple[int, str], Mapping[str, Any]]:
    """Return lines by their step and what they are about."""
    some = [line for line in lines if steps is None or line["step"] <= steps]
    return {(int(line["step"]), _about(line)): line for line in some}


def _judges(metric: str) -> bool:
    return metric.removeprefix("eval_") in JUDGED


def _about(line: Mapping[str, Any]) -> str:
    if any(name.startswith("eval_") for name in line):
        return "evaluation"
    return "skipped" if "skipped" in line else "training"


def _apart(was: Any, now: Any) -> float:
    if not all(isinstance(each, int | float) and math.isfinite(each) for each in (was, now)):
        return math.inf
    return abs(now - was) / max(abs(was), abs(now))

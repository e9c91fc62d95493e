"""Changes and their intervals, against the formula in the paper and by drawing."""

from __future__ import annotations

from math import exp, sqrt

import numpy as np
import pytest

from gym_eval.comparison import change, of_proportions
from gym_eval.evaluating import Evaluated
from gym_eval.scores import Score


def score(values: list[float], higher: bool | None = True, total=None) -> Score:
    return Score("task", "metric", 0.0, None, higher, None, {str(at): each for at, each in enumerate(values)}, total)


def test_the_interval_of_paired_proportions_is_that_of_bonett_and_price():
    """Theirs is written with counts: p12 = (f12 + 1) / (n + 2), p21 = (f21 + 1) / (n + 2)."""
    after, before = [1] * 12 + [0] * 5 + [1] * 23, [0] * 12 + [1] * 5 + [1] * 23
    n, gained, lost = 40, 13 / 42, 6 / 42
    half = 1.959963984540054 * sqrt((gained + lost - (gained - lost) ** 2) / (n + 2))
    found = change(score(after), score(before))
    assert (found.low, found.high) == pytest.approx((gained - lost - half, gained - lost + half))
    assert (found.better, found.worse, found.change) == (12, 5, pytest.approx(7 / 40))


def test_the_interval_holds_what_it_promises():
    draw = np.random.default_rng(0)
    for count in (20, 100):
        held = 0
        for _ in range(2000):
            values = draw.choice([-1.0, 0.0, 1.0], p=[0.2, 0.7, 0.1], size=count)
            low, high = of_proportions(values)
            held += low <= -0.1 <= high
        assert 0.93 < held / 2000 < 0.985


def test_verdicts():
    right, wrong = [1.0] * 50, [0.0] * 50
    lost = change(score(wrong), score(right))
    assert lost.verdict(0.5) == "dropped" and change(score(right), score(wrong)).verdict(0.0) == "ok"
    assert change(score([1.0, 0.0] * 3), score([0.0, 1.0] * 3)).verdict(0.01) == "undecided"
    assert change(score(wrong, None), score(right, None)).verdict(0.0) == ""
    slower = change(score([3.5] * 9 + [3.6], False), score([2.5] * 10, False))
    assert slower.verdict(0.5) == "dropped" and slower.worse == 10 and slower.method == "paired bootstrap"


def test_scores_that_are_no_means_are_drawn_as_a_whole():
    def perplexity(values):
        return exp(-float(np.mean(values)))

    draw = np.random.default_rng(1)
    old = draw.normal(-2, 0.3, 80)
    found = change(score([*(old - 0.5)], False, perplexity), score([*old], False, perplexity))
    assert found.low < found.change < found.high and found.low > 0
    assert found.verdict(0.1) == "dropped"


def test_the_gate_opens_only_where_every_score_is_decided() -> None:
    """With few questions even equal models may differ by more; a comparison that judges nothing proves nothing."""
    few, many = ([1.0, 0.0] * count for count in (5, 500))
    equal_few, equal_many = (change(score(values), score(values)) for values in (few, many))
    unjudged = change(score(many, None), score(many, None))
    for changes, passes in (
        ([equal_many, unjudged], True),
        ([equal_many, equal_few], False),
        ([unjudged], False),
        ([], False),
    ):
        assert Evaluated("one", "other", [], changes, 0.01).passed == passes
    assert Evaluated("one", "other", [], [], None).passed

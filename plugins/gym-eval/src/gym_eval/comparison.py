"""What changed between two models that were asked the same questions, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gym_eval.scores import Score, Total

Verdict = Literal["", "ok", "undecided", "dropped"]
NORMAL = 1.959963984540054  #: quantile of the normal distribution at 97.5 %
DRAWS = 10_000  #: samples of the questions, for means
DRAWS_OF_TOTALS = 1_000  #: for scores that are no means, each of which is computed anew
SEED = 0
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Change:
    """How a score of a task changed, with the 95 % interval of what more such questions would show."""

    score: Score  #: of the model
    before: float  #: of the model that it is compared with
    change: float  #: score less before
    low: float
    high: float
    questions: int
    better: int  #: questions at which it does better
    worse: int
    method: str

    def verdict(self, most: float) -> Verdict:
        """Return whether it lost more than `most`: `dropped` where the whole interval says so, `ok` where none of it does.

        Empty where neither way is better.
        """
        if self.score.higher_is_better is None:
            return ""
        drops = (-self.high, -self.low) if self.score.higher_is_better else (self.low, self.high)
        return "dropped" if drops[0] > most else "ok" if drops[1] <= most else "undecided"


def compared(after: Sequence[Score], before: Sequence[Score]) -> list[Change]:
    """Return how each score that both have, with its questions, changed."""
    earlier = {(score.task, score.metric): score for score in before}
    pairs = ((score, earlier.get((score.task, score.metric))) for score in after)
    return [change(score, old) for score, old in pairs if old and score.questions.keys() & old.questions.keys()]


def change(after: Score, before: Score) -> Change:
    """Return how a score changed over the questions that both were asked, which are paired: what is hard is so for both.

    Where answers are right or wrong, the interval is that of Bonett and Price (2012, doi:10.3102/1076998611411915) for paired
    proportions, which holds for few questions too; for anything else percentiles of the paired bootstrap.
    """
    names = [name for name in after.questions if name in before.questions]
    new, old = ([score.questions[name] for name in names] for score in (after, before))
    sign = 1 if after.higher_is_better is not False else -1
    if after.total is not None:
        low, high = of_totals(new, old, after.total)
        scores, method = (after.total(new), after.total(old)), "paired bootstrap"
    else:
        differences = np.array(new, dtype=np.float64) - np.array(old, dtype=np.float64)
        scores = float(np.mean(new)), float(np.mean(old))
        binary = set(np.unique([*map(float, new), *map(float, old)])) <= {0.0, 1.0}
        low, high = of_proportions(differences) if binary else of_means(differences)
        method = "Bonett-Price" if binary else "paired bootstrap"
    better, worse = _counts(new, old, sign) if after.total is None else (0, 0)
    return Change(after, scores[1], scores[0] - scores[1], low, high, len(names), better, worse, method)


def of_proportions(differences: Floats) -> tuple[float, float]:
    """Return the interval of the mean of differences of -1, 0 and 1, `[questions]`: Wald's, with one more of each sign."""
    count = len(differences) + 2
    mean = float(differences.sum()) / count
    half = NORMAL * sqrt((float(np.square(differences).sum()) + 2) / count - mean**2) / sqrt(count)
    return max(-1.0, mean - half), min(1.0, mean + half)


def of_means(differences: Floats) -> tuple[float, float]:
    """Return percentiles of the means of differences `[questions]` that are drawn again."""
    draw = np.random.default_rng(SEED)
    means = [differences[draw.integers(len(differences), size=len(differences))].mean() for _ in range(DRAWS)]
    return _percentiles(means)


def of_totals(new: Sequence[Any], old: Sequence[Any], total: Total) -> tuple[float, float]:
    """Return percentiles of differences of scores that are no means, over questions that are drawn again."""
    draw, found = np.random.default_rng(SEED), []
    for _ in range(DRAWS_OF_TOTALS):
        chosen = draw.integers(len(new), size=len(new))
        found.append(total([new[at] for at in chosen]) - total([old[at] for at in chosen]))
    return _percentiles(found)


def _percentiles(values: Sequence[float]) -> tuple[float, float]:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def _counts(new: Sequence[float], old: Sequence[float], sign: int) -> tuple[int, int]:
    signs = [sign * (float(one) - float(other)) for one, other in zip(new, old, strict=True)]
    return sum(each > 0 for each in signs), sum(each < 0 for each in signs)

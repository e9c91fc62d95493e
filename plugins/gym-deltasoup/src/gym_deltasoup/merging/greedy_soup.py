"""The greedy soup (arXiv:2203.05482, recipe 1): what does not make the mean of those that were kept worse is kept."""

from __future__ import annotations

from math import isnan

import torch
from torch import Tensor

from gym_core import GymError
from gym_deltasoup.config.dense import GreedySoup
from gym_deltasoup.merging.rule import MergeRule, Plan, weighted
from gym_deltasoup.merging.updates import Scorer, Updates


class GreedySoupRule(MergeRule):
    """The mean of those that together are best."""

    def __init__(self, config: GreedySoup) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Score each input, then the soups. A score that is not a number keeps nothing; GymError where all are none."""
        score = updates.score
        assert score is not None, "a merger that needs an evaluation is given one"
        count = len(updates.ids)
        alone = [score(mean_of([number], count)) for number in range(count)]
        sound = [number for number in range(count) if not isnan(alone[number])]
        if not sound:
            raise GymError("no input has a score that is a number", key="evaluate", fix="see what it returns for one")
        ranked = sorted(sound, key=lambda number: (-alone[number], updates.ids[number]))
        kept, best = greedy(ranked, alone[ranked[0]], score, count)
        known = [None if isnan(each) else each for each in alone]  # JSON has no NaN
        told = {"scores": dict(zip(updates.ids, known, strict=True)), "score": best}
        return weighted(mean_of(kept, count), {**told, "kept": [updates.ids[number] for number in kept]})


def greedy(ranked: list[int], best: float, score: Scorer, count: int) -> tuple[list[int], float]:
    """Return which inputs are kept, of all from the best to the worst, and the score of their mean."""
    kept = ranked[:1]
    for number in ranked[1:]:
        found = score(mean_of([*kept, number], count))
        if found >= best:
            kept, best = [*kept, number], found
    return kept, best


def mean_of(members: list[int], count: int) -> Tensor:
    """Return the weights of the mean of some of `count` inputs."""
    weights = torch.zeros(count, dtype=torch.float64)
    weights[members] = 1 / len(members)
    return weights

"""Greedy completions beside the groups of a round: their rewards are a baseline, and nothing is trained on them (ReMax)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gym_rewards.reward_manager import RewardResult


def split_baselines(judged: RewardResult, answers: int, size: int) -> tuple[RewardResult, list[float | None]]:
    """Return what rewards say of the first `answers` completions, and for each of them the reward of the greedy one.

    Greedy completions stand behind the others, one for each group of `size`. What has no baseline cannot be compared, and is as
    if it had not been scored; where a reward failed on a greedy completion, it failed on its group.
    """
    greedy = [answers + place // size for place in range(answers)]
    baselines = [judged.totals[place] for place in greedy]

    def comparable(values: Sequence[float | None]) -> list[float | None]:
        return [None if base is None else value for value, base in zip(values[:answers], baselines, strict=True)]

    return replace(
        judged,
        scores={name: said[:answers] for name, said in judged.scores.items()},
        totals=comparable(judged.totals),
        failed={
            name: {number for number, place in enumerate(greedy) if number in places or place in places}
            for name, places in judged.failed.items()
        },
        compared=None if judged.compared is None else comparable(judged.compared),
    ), baselines

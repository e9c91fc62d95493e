"""Greedy completions beside the groups of a round: their rewards are a baseline, and nothing is trained on them (ReMax)."""

from __future__ import annotations

from dataclasses import replace

from gym_rewards.reward_manager import RewardResult


def split_baselines(judged: RewardResult, answers: int, size: int) -> tuple[RewardResult, list[float | None]]:
    """Return what rewards say of the first `answers` completions, and for each of them the reward of the greedy one.

    Greedy completions stand behind the others, one for each group of `size`. What has no baseline cannot be compared, and is as
    if it had not been scored; where a reward failed on a greedy completion, it failed on its group. What completions are told
    apart by is then how far each is from the greedy one.
    """
    greedy = [answers + place // size for place in range(answers)]
    baselines = [judged.totals[place] for place in greedy]
    compared = judged.totals if judged.compared is None else judged.compared
    pairs = [(compared[place], compared[base]) for place, base in enumerate(greedy)]

    return replace(
        judged,
        scores={name: said[:answers] for name, said in judged.scores.items()},
        totals=[None if base is None else judged.totals[place] for place, base in enumerate(baselines)],
        failed={
            name: {number for number, place in enumerate(greedy) if number in places or place in places}
            for name, places in judged.failed.items()
        },
        compared=[None if value is None or base is None else value - base for value, base in pairs],
    ), baselines

"""ReMax: a greedy answer to each prompt is what the others are compared with, and is neither kept nor trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gym_rl_bench import algorithm, arbitrary, prompts, rounds

from gym_rewards import RewardInput
from gym_rewards.reward_manager import RewardResult
from gym_rl import ReMax
from gym_rl.rollout_engine import RolloutRequest
from gym_rl.rollouts.compute_advantages import against_greedy
from gym_rl.rollouts.dynamic_sampling import in_loss
from gym_rl.rollouts.evaluation import evaluation_options
from gym_rl.rollouts.experience import Experience
from gym_rl.rollouts.generate_and_score import RolloutGenerator
from gym_rl.rollouts.greedy_baseline import split_baselines


@pytest.mark.parametrize("group_size", [1, 4])
def test_an_answer_earns_its_reward_less_that_of_the_greedy_one(model_path: Path, group_size: int) -> None:
    rollouts = rounds(model_path, kind=ReMax, group_size=group_size, temperature=0.8, top_p=0.9)
    step = next(rollouts.steps(0))
    made, generator = rollouts.experience, rollouts.generator
    tokens = [prompts(6)[int(prompt)].tokens.tolist() for prompt in made.prompts]
    greedy = generator.engine.generate(RolloutRequest(tokens, generator.config.max_new_tokens))
    texts = [generator.tokenizer.decode(one.tokens[:-1] if one.finished else one.tokens) for one in greedy]
    wanted = arbitrary([RewardInput(text) for text in texts])
    assert made.baselines.tolist() == wanted
    earned = (made.rewards - torch.tensor(wanted, dtype=torch.float64)).float()
    assert torch.equal(made.columns["advantages"], earned[made.owner]) and earned.any()
    assert step.metrics["reward_baseline"] == pytest.approx(sum(wanted) / len(wanted))
    assert sum(map(len, step.batches)) == len(wanted)


def test_what_is_sampled_does_not_depend_on_what_is_asked_beside(model_path: Path) -> None:
    with_it, without = rounds(model_path, kind=ReMax, group_size=4), rounds(model_path)
    next(with_it.steps(0)), next(without.steps(0))
    assert torch.equal(with_it.experience.tokens, without.experience.tokens)
    assert torch.equal(with_it.experience.rewards, without.experience.rewards)
    assert without.experience.baselines is None


def test_what_has_no_baseline_is_not_learnt_from(model_path: Path) -> None:
    def some(answers: Sequence[RewardInput]) -> list[float | None]:
        """Judge no greedy answer but the first: there are eight answers, of two groups."""
        return [*arbitrary(answers)[:9], *[None] * (len(answers) - 9)]

    rollouts = rounds(model_path, some, kind=ReMax, group_size=4)
    step = next(rollouts.steps(0))
    assert rollouts.experience.rewards.isnan().tolist() == [False] * 4 + [True] * 4
    assert {answer.group for batch in step.batches for answer in batch} == {0}


def test_a_reward_that_fails_on_a_greedy_answer_fails_on_its_group() -> None:
    scores = [1.0, 0.0, 0.5, None, 0.25, None]  # four answers in two groups, and the greedy ones
    judged = RewardResult({"one": scores}, scores, {"one": {3, 5}}, compared=[0.0, 1.0, 2.0, None, 4.0, None])
    found, baselines = split_baselines(judged, 4, 2)
    assert (found.totals, baselines) == ([1.0, 0.0, None, None], [0.25, 0.25, None, None])
    assert (found.scores, found.failed, found.compared) == (
        {"one": scores[:4]},
        {"one": {2, 3}},
        [-4.0, -3.0, None, None],
    )


def test_a_group_that_differs_from_the_greedy_answer_alone_is_learnt_from() -> None:
    """Dynamic sampling leaves out what earns nothing: the answers of a group that are all as good as the greedy one."""
    scores = [1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]  # six answers in three groups, and the greedy ones
    for more in ({}, {"compared": [2 * score for score in scores]}):
        judged, bases = split_baselines(RewardResult({}, scores, **more), 6, 2)
        made = Experience(
            number=torch.tensor(0),
            groups=torch.arange(6) // 2,
            prompts=torch.arange(6) // 2,
            lengths=torch.ones(6, dtype=torch.int64),
            tokens=torch.zeros(6, dtype=torch.int32),
            finished=torch.ones(6, dtype=torch.bool),
            rewards=torch.tensor(judged.totals, dtype=torch.float64),
            compared=torch.tensor(judged.compared, dtype=torch.float64),
            baselines=torch.tensor(bases, dtype=torch.float64),
        )
        for each in (made, replace(made, compared=None)):
            assert each.informative.tolist() == [True, False, True]
            assert (
                in_loss(each, algorithm(ReMax, group_size=2, max_resample=1)).tolist()
                == [True] * 2 + [False] * 2 + [True] * 2
            )


def test_one_answer_a_prompt_is_resampled_where_it_is_as_good_as_the_greedy_one(model_path: Path) -> None:
    rollouts = rounds(model_path, kind=ReMax, group_size=1, max_resample=3, temperature=2.0, count=40)
    step = next(rollouts.steps(0))
    made, learnt = rollouts.experience, [answer.number for batch in step.batches for answer in batch]
    apart = made.rewards != made.baselines
    assert sorted(learnt) == apart.nonzero().flatten().tolist() and len(learnt) > 0
    assert step.metrics["dynamic_sampling/num_prompts"] > len(made.rewards)


def test_an_evaluation_asks_for_no_baseline(model_path: Path) -> None:
    training = rounds(model_path, kind=ReMax).generator
    asked: list[int] = []

    def judge(answers: Sequence[RewardInput]) -> RewardResult:
        asked.append(len(answers))
        return RewardResult({}, [0.0] * len(answers))

    options = evaluation_options(algorithm(ReMax))
    generator = RolloutGenerator(options, training.prompts, training.engine, training.tokenizer, judge, baselines=False)
    assert generator(0, torch.arange(6).numpy(), range(6)).baselines is None
    assert asked == [6]


def test_an_answer_that_nothing_judged_earns_nothing(model_path: Path) -> None:
    rollouts = rounds(model_path, lambda answers: [math.nan, *arbitrary(answers)[1:]], kind=ReMax, group_size=4)
    next(rollouts.steps(0))
    found = against_greedy(rollouts.experience, rollouts.config)["advantages"]
    assert not found[: int(rollouts.experience.lengths[0])].any() and found.isfinite().all()

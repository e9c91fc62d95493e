"""Dynamic sampling: groups that teach nothing make way for others, and a run that was killed goes on exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gym_rl_bench import algorithm, arbitrary, interrupted, rounds

from gym_rewards import RewardInput
from gym_rl.rollouts.dynamic_sampling import concatenate, dynamic_sample, group_count, in_loss, select_groups
from gym_rl.rollouts.experience import Experience
from gym_rl.rollouts.rollout_loop import Rollouts
from gym_torch.source import Step


def round_of(*rewards: Sequence[float], first: int = 0) -> Experience:
    """Return a round of groups with these rewards; prompts count from `first`, and answer n of all has n % 3 + 1 tokens."""
    flat = [reward for group in rewards for reward in group]
    lengths = torch.arange(len(flat)) % 3 + 1
    groups = torch.repeat_interleave(torch.arange(len(rewards)), torch.tensor([len(group) for group in rewards]))
    tokens = torch.arange(int(lengths.sum())) + 100 * first
    return Experience(
        number=torch.tensor(0),
        groups=groups,
        prompts=groups + first,
        lengths=lengths,
        tokens=tokens.int(),
        finished=torch.arange(len(flat)) % 2 == 0,
        rewards=torch.tensor(flat, dtype=torch.float64),
        scores={"one": torch.tensor(flat, dtype=torch.float64)},
        columns={"sampling_log_probs": tokens.float()},
    )


def same(one: Experience, other: Experience) -> bool:
    left, right = one.tensors(), other.tensors()
    return left.keys() == right.keys() and all(
        torch.equal(left[name].nan_to_num(-9), right[name].nan_to_num(-9)) for name in left
    )


def test_groups_are_taken_out_and_put_together_again() -> None:
    whole = round_of((1, 0), (1, 1), (0, 0, 1), (math.nan, 1))
    whole = replace(whole, baselines=whole.rewards + 1)
    assert whole.nonzero_std.tolist() == [True, False, True, False]
    good, bad = select_groups(whole, whole.nonzero_std), select_groups(whole, ~whole.nonzero_std)
    assert good.groups.tolist() == [0, 0, 1, 1, 1] and good.prompts.tolist() == [0, 0, 2, 2, 2]
    answers = whole.tokens.split(whole.lengths.tolist())
    assert good.tokens.tolist() == torch.cat([answers[n] for n in (0, 1, 4, 5, 6)]).tolist()
    assert good.columns["sampling_log_probs"].tolist() == good.tokens.tolist()
    assert torch.equal(good.baselines, good.rewards + 1)
    again = concatenate([good, bad])
    assert again.prompts.tolist() == [0, 0, 2, 2, 2, 1, 1, 3, 3] and again.groups.tolist() == [
        0,
        0,
        1,
        1,
        1,
        2,
        2,
        3,
        3,
    ]
    assert same(select_groups(whole, torch.ones(4, dtype=torch.bool)), whole)
    nothing = select_groups(whole, torch.zeros(4, dtype=torch.bool))
    assert group_count(nothing) == 0 and same(concatenate([nothing, whole]), whole)


class Asked:
    """Answers prompts in their order, of which those in `good` are worth learning from."""

    def __init__(self, *good: int) -> None:
        self.good, self.at, self.counts = good, 0, list[int]()

    def __call__(self, count: int) -> Experience:
        self.counts.append(count)
        self.at += count
        return round_of(
            *((number in self.good, 0) for number in range(self.at - count, self.at)), first=self.at - count
        )


def test_other_prompts_are_asked_until_there_are_enough_and_those_too_many_come_next() -> None:
    ask = Asked(1, 4, 5, 8, 9, 11, 12, 13)
    first = dynamic_sample(3, 4, 4, (), ask)
    assert ask.counts == [4, 4, 3]  # after three of eight, three prompts are likely to give the one that is missing
    assert first.experience.prompts[::2].tolist() == [1, 4, 5, 8] and int(first.experience.number) == 3
    (left,) = first.carried_over
    assert left.prompts[::2].tolist() == [9]
    assert first.metrics["dynamic_sampling/num_prompts"] == 11 and first.metrics["dynamic_sampling/frac_filled"] == 0
    assert first.metrics["frac_reward_zero_std"] == pytest.approx(6 / 11)
    assert first.metrics["reward"] == pytest.approx(5 / 22)
    second = dynamic_sample(4, 4, 4, first.carried_over, ask)
    assert ask.counts[3:] == [3] and not second.carried_over
    assert second.experience.prompts[::2].tolist() == [9, 11, 12, 13]


def test_groups_are_filtered_by_what_tells_their_answers_apart() -> None:
    """Rewards that differ by a punishment of length alone do not keep a group; right and wrong answers do."""
    length = torch.tensor([0.0, -0.05, 0.0, 0.0], dtype=torch.float64)
    right = torch.tensor([0.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    asked = replace(round_of((0, 0), (0, 0)), rewards=right + length, compared=right)
    assert asked.nonzero_std.tolist() == [True, True] and asked.informative.tolist() == [False, True]
    found = dynamic_sample(0, 2, 1, (), lambda count: asked)
    assert found.experience.prompts.tolist() == [1, 1, 0, 0] and found.metrics["dynamic_sampling/frac_dropped"] == 0.5
    config = algorithm(max_resample=1)
    assert in_loss(found.experience, config).tolist() == [True, True, False, False]
    assert same(Experience.from_tensors(found.experience.tensors()), found.experience)


def test_a_round_that_finds_too_few_goes_on_with_what_there_is() -> None:
    ask = Asked(5)
    found = dynamic_sample(0, 4, 3, (), ask)
    assert ask.counts == [4, 4, 4]
    assert group_count(found.experience) == 4 and int(found.experience.nonzero_std.sum()) == 1
    assert (
        found.experience.prompts[0] == 5
        and found.metrics["dynamic_sampling/frac_filled"] == 0.75
        and not found.carried_over
    )


def test_where_enough_is_carried_over_nothing_is_asked() -> None:
    ask = Asked()
    kept = select_groups(round_of((1, 0), (0, 1), (0.5, 0)), torch.ones(3, dtype=torch.bool))
    found = dynamic_sample(1, 2, 4, (kept,), ask)
    assert not ask.counts and group_count(found.experience) == 2 and group_count(found.carried_over[0]) == 1


def solved(answers: Sequence[RewardInput]) -> list[float | None]:
    """Judge prompts of even numbers by their answers, and say the same to all answers to the others."""
    return [
        score if int(one.id.split()[1]) % 2 == 0 else 1.0
        for one, score in zip(answers, arbitrary(answers), strict=True)
    ]


def seen(steps: Sequence[Step]) -> list[tuple[str, list[int], list[float]]]:
    every = [answer for step in steps for batch in step.batches for answer in batch]
    return [(answer.prompt.id, answer.tokens.tolist(), answer.columns["advantages"].tolist()) for answer in every]


def sampling(path: Path, **options: object) -> Rollouts:
    settings = {"max_resample": 3, "num_mini_batches": 2, "train": {"batch_size": 4, "accumulate": 1, "max_steps": 6}}
    return rounds(path, solved, 9, **settings | options)


def test_only_what_teaches_is_learnt_from(model_path: Path) -> None:
    source = sampling(model_path)
    steps = list(source.steps(0))
    assert len(steps) == 6 == source.total
    assert all(int(name.split()[1]) % 2 == 0 for name, _, _ in seen(steps))
    assert all(any(map(any, (advantages for _, _, advantages in seen([step])))) for step in steps)  # a group each
    assert steps[-1].epoch == pytest.approx(source.next_prompt / 9, abs=1e-5) and source.next_prompt > 6
    assert {"dynamic_sampling/num_prompts", "dynamic_sampling/frac_filled", "frac_reward_zero_std"} <= steps[
        0
    ].metrics.keys()
    plain = list(rounds(model_path, solved, 9, num_mini_batches=2, train={"batch_size": 4, "max_steps": 2}).steps(0))
    assert any(int(name.split()[1]) % 2 for name, _, _ in seen(plain))


@pytest.mark.parametrize("done", [1, 2, 3])
def test_a_checkpoint_in_the_middle_of_a_round_holds_what_is_carried_over(model_path: Path, done: int) -> None:
    whole, rest = map(list, interrupted(lambda: sampling(model_path), done))
    assert seen(rest) == seen(whole) and len(rest) == 6 - done
    assert [(step.epoch, step.metrics) for step in rest] == [(step.epoch, step.metrics) for step in whole]


def test_a_prompt_that_is_always_solved_ends_no_run(model_path: Path) -> None:
    source = rounds(model_path, lambda answers: [1.0] * len(answers), max_resample=2, train={"max_steps": 2})
    steps = list(source.steps(0))
    assert [step.metrics["dynamic_sampling/frac_filled"] for step in steps] == [1.0, 1.0]
    assert all(not any(advantages) for _, _, advantages in seen(steps)) and len(seen(steps)) == 16


def test_answers_that_are_cut_off_are_not_learnt_from_but_are_compared(model_path: Path) -> None:
    plain, masked = (
        rounds(model_path, max_new_tokens=40, mask_truncated_completions=on, train={"max_steps": 1})
        for on in (False, True)
    )
    (whole,), (part,) = plain.steps(0), masked.steps(0)
    cut = {number for number, ended in enumerate(plain.experience.finished.tolist()) if not ended}
    assert 0 < len(cut) < 8, "the model must end some answers for this test to say anything"
    assert masked.experience.rewards.tolist() == plain.experience.rewards.tolist()
    wanted = [answer for answer in seen([whole]) if len(answer[1]) < 40 or answer in seen([part])]
    assert sorted(seen([part])) == sorted(wanted) and len(wanted) == 8 - len(cut)
    assert not masked.experience.columns["advantages"][
        ~in_loss(masked.experience, masked.config)[masked.experience.owner]
    ].any()

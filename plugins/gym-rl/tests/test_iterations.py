"""Several passes over the completions of a round: what is learnt when, from what, and after a checkpoint in between."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from gym_rl_bench import interrupted, rounds

from gym_rl.rollouts.rollout_loop import Rollouts
from gym_testkit.bench import Bench
from gym_torch.source import Step


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def source(path: Path, **train: int) -> Rollouts:
    """Return rounds of two prompts, a mini-batch for each, over five prompts: the last round has one."""
    train = {"batch_size": 4, "accumulate": 1, "epochs": 1, **train}
    return rounds(path, count=5, num_mini_batches=2, num_iterations=3, train=train)


def asked(step: Step) -> list[str]:
    return sorted({answer.prompt.id for batch in step.batches for answer in batch})


def tokens(steps: Sequence[Step]) -> list[list[int]]:
    return [answer.tokens.tolist() for step in steps for batch in step.batches for answer in batch]


def test_mini_batches_come_again_with_the_same_completions(model_path: Path) -> None:
    rollouts = source(model_path)
    steps = list(rollouts.steps(0))
    assert rollouts.total == len(steps) == 3 * 5
    once = [steps[:2], steps[6:8], steps[12:13]]
    for start, first in zip((0, 6, 12), once, strict=True):
        for again in (1, 2):
            there = start + again * len(first)
            assert tokens(steps[there : there + len(first)]) == tokens(first)
    assert sorted(name for each in once for step in each for name in asked(step)) == [f"row {n}" for n in range(5)]
    fresh = [all(answer.fresh for batch in step.batches for answer in batch) for step in steps]
    assert fresh == [number in (0, 6, 12) for number in range(15)]
    assert [step.epoch for step in steps] == sorted(step.epoch for step in steps) and steps[-1].epoch == 1.0
    assert steps[5].epoch == pytest.approx(0.4)


def test_as_many_rounds_as_the_steps_need(model_path: Path) -> None:
    rollouts = source(model_path, max_steps=8)
    assert len(list(rollouts.steps(0))) == 8 and len(rollouts.order.bounds) == 3


@pytest.mark.parametrize("gone", [2, 3, 5])
def test_a_checkpoint_between_two_passes_holds_the_round(model_path: Path, gone: int) -> None:
    wanted, found = map(next, interrupted(lambda: source(model_path), gone))
    assert tokens([found]) == tokens([wanted]) and found.epoch == wanted.epoch


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_pass_compares_with_the_policy_when_the_round_began(bench: Bench, precision: str) -> None:
    rewards = [{"name": "regex", "pattern": "[a-m]"}]
    options = {"rewards": rewards, "max_new_tokens": 8, "num_mini_batches": 1, "num_iterations": 2}
    made = bench.recipe({"name": "reinforce_pp", **options}, "prompt", max_steps=4, precision=precision)
    run = bench.run(made)
    apart, begun = run.series("ratio/abs_dev"), run.series("reward")
    rounding = 1e-5 if precision == "fp32" else 1e-3
    assert apart[0] <= rounding and apart[2] <= rounding and min(apart[1], apart[3]) > 10 * rounding
    assert begun[0] == begun[1] and begun[2] == begun[3]
    assert torch.tensor(run.series("grad_norm")).gt(0).all()

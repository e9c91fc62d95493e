"""Rounds with nothing to learn from, and rewards that fail: weights stay as they are, and somebody is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gym_core import GymError
from gym_testkit.bench import Bench, Finished, fingerprint

ALGORITHMS = ("rloo", "reinforce_pp", "reinforce_pp_baseline", "ppo")
MINE = """
calls = 0

def arbitrary(texts):
    return [float(sum(map(ord, text)) % 7) for text in texts]

def equal_later(texts):
    global calls
    calls += 1
    return [float(sum(map(ord, text)) % 7) if calls == 1 else 0.1 for text in texts]

def some_fail(texts):
    if len(texts) > 1 or sum(map(ord, texts[0])) % 2:
        raise RuntimeError("cannot judge this")
    return [float(sum(map(ord, texts[0])) % 7)]

def all_fail(texts):
    raise RuntimeError("cannot judge anything")
"""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    (tmp_path / "mine.py").write_text(MINE)
    return Bench(tmp_path)


def recipe(bench: Bench, name: str, function: str, steps: int, **options: Any) -> dict[str, Any]:
    rewards = [{"name": "python", "function": f"{bench.root}/mine.py:{function}"}]
    algorithm = {"name": name, "rewards": rewards, "max_new_tokens": 4, "num_mini_batches": 1, **options}
    return {**bench.recipe(algorithm, "prompt", max_steps=steps, save_every=1), "scheduler": "constant"}


def states(run: Finished, *steps: int) -> list[dict[str, str]]:
    """Return the files of weights and of the optimizer after these steps."""
    folders = [run.outcome.output / "checkpoints" / f"step-{step:08d}" for step in steps]
    return [
        {name: value for name, value in fingerprint(folder, ".safetensors").items() if not name.startswith("source")}
        for folder in folders
    ]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_where_every_answer_is_cut_off_nothing_moves(bench: Bench, name: str) -> None:
    """The critic of PPO does not learn from them either."""
    run = bench.run(recipe(bench, name, "arbitrary", 2, mask_truncated_completions=True, max_new_tokens=1))
    first, second = states(run, 1, 2)
    assert run.series("completions/clipped_ratio") == [1.0, 1.0], (
        "the model must end no answer for this test to say anything"
    )
    assert (
        first == second and run.series("grad_norm") == [0.0, 0.0] and run.series("steps_without_update") == [1.0, 1.0]
    )


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "ppo"])  # whose critic learns from any reward
def test_where_all_earn_the_same_momentum_moves_nothing(bench: Bench, name: str) -> None:
    run = bench.run(recipe(bench, name, "equal_later", 2))
    first, second = states(run, 1, 2)
    assert run.series("grad_norm")[0] > 0 == run.series("grad_norm")[1]
    assert first == second and run.series("steps_without_update") == [0.0, 1.0]


def test_failures_are_counted_and_said(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    run = bench.run(recipe(bench, "rloo", "some_fail", 2, on_error="mask"))
    failures = run.series("rewards/python/failures")
    assert all(0 < count < 8 for count in failures)
    said = capsys.readouterr().err
    assert said.count("reward `python` (gym-rewards ") == 1 and "cannot judge this" in said
    assert f"failed on {sum(failures):.0f} completions of this run" in said


def test_a_reward_that_fails_on_every_answer_stops_the_run(bench: Bench) -> None:
    with pytest.raises(GymError, match="failed on each of 8 completions") as raised:
        bench.run(recipe(bench, "rloo", "all_fail", 2, on_error="mask"))
    assert "cannot judge anything" in str(raised.value) and len(str(raised.value).splitlines()) <= 4


def test_a_reward_that_is_not_there_stops_the_run_before_it_answers(bench: Bench) -> None:
    made = recipe(bench, "rloo", "no_such_function", 2, on_error="mask")
    with pytest.raises(GymError, match="defines no `no_such_function`"):
        bench.run(made)
    assert not (bench.root / "run" / "metrics.jsonl").exists()

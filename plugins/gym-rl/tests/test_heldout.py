"""Evaluation by reward: what is measured of held-out prompts, what a run does with it, and what it leaves alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from gym_core import RecipeError, execute, load_recipe
from gym_rl.rollout_log.files import HELD_OUT, TRAINING, RolloutLog
from gym_testkit.bench import Bench, Finished, fingerprint
from gym_testkit.team import start

torch.set_num_threads(1)
STOP = ["a", "e", "o"]
REWARDS = [{"name": "length", "maximum": 2, "slack": 14}, {"name": "exact", "weight": 0.5}]


def recipe(bench: Bench, held_out: int = 5, algorithm: dict[str, Any] | None = None, **train: Any) -> dict[str, Any]:
    options = {"name": "rloo", "rewards": REWARDS, "group_size": 4, "max_new_tokens": 12, **(algorithm or {})}
    made = bench.recipe(options, "prompt", **{"max_steps": 4, "eval_every": 2} | train)
    data = {"sources": [made["data"]]} | ({"validation": held_out} if held_out else {})
    return made | {"data": data}


def evaluations(run: Finished) -> list[dict[str, Any]]:
    return [line for line in run.metrics if "eval_reward" in line]


def weights(run: Finished) -> dict[str, str]:
    return fingerprint(run.outcome.artifact.path, ".safetensors")


def timeless(run: Finished) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name != "tokens_per_second"} for line in run.metrics]


def test_held_out_prompts_are_answered_and_judged_and_nothing_else_changes(bench: Bench) -> None:
    run = bench.run(recipe(bench), "often")
    found = evaluations(run)
    assert [line["step"] for line in found] == [2, 4]
    for line in found:
        assert line["eval_reward"] == pytest.approx(
            line["eval_rewards/length/mean"] + 0.5 * line["eval_rewards/exact/mean"]
        )
        assert 0 < line["eval_completions/mean_length"] <= 12 and 0 <= line["eval_completions/clipped_ratio"] <= 1
    seldom = bench.run(recipe(bench), "seldom", eval_every=4, eval_on_start=True)
    assert weights(run) == weights(seldom)
    first, *later = evaluations(seldom)
    assert first["step"] == 0 and later == found[1:]


def test_evaluations_are_greedy_unless_several_samples_are_asked_for(bench: Bench) -> None:
    bench.run(recipe(bench, learning_rate=0.0), "greedy")
    one, two = (RolloutLog(bench.root / "greedy").read(HELD_OUT, step) for step in (2, 4))
    assert [(sample.id, sample.answer) for sample in one] == [(sample.id, sample.answer) for sample in two]
    drawn = {"eval_samples": 3, "eval_temperature": 1.0}
    bench.run(recipe(bench, algorithm=drawn, learning_rate=0.0), "drawn")
    many, again = (RolloutLog(bench.root / "drawn").read(HELD_OUT, step) for step in (2, 4))
    assert [sample.id for sample in many] == [sample.id for sample in one for _ in range(3)]
    assert len({sample.answer for sample in many}) > 5
    assert [sample.answer for sample in many] == [sample.answer for sample in again]
    with pytest.raises(Exception, match="all the same"):
        load_recipe(recipe(bench, algorithm={"eval_samples": 2}))


def test_the_highest_reward_is_the_best_and_is_kept(bench: Bench) -> None:
    settings = {"keep_best": True, "keep_last": 1, "eval_every": 1, "max_steps": 6, "learning_rate": 0.05}
    run = bench.run(recipe(bench), **settings)
    rewards = {line["step"]: line["eval_reward"] for line in evaluations(run)}
    best = max(rewards, key=lambda step: rewards[step])
    record = json.loads((run.outcome.output / "run.json").read_text())["training"]
    assert record["best"] == {"step": best, "eval_reward": rewards[best]}
    assert (run.outcome.output / "checkpoints" / f"step-{best:08d}").exists()
    assert record["eval_reward"] == rewards[6]
    lines = [line["reward"] for line in run.metrics if "reward" in line]
    assert (record["first_reward"], record["reward"]) == (lines[0], lines[-1])
    logged = [json.loads(line) for line in (run.outcome.output / "trainer_log.jsonl").read_text().splitlines()]
    assert {"loss", "reward"} <= logged[0].keys() and "eval_reward" in logged[1]


def test_early_stopping_waits_for_a_higher_reward(bench: Bench) -> None:
    asked = recipe(bench, max_steps=9, eval_every=1, learning_rate=0.0)
    run = bench.run({**asked, "callbacks": [{"name": "early_stopping", "patience": 2}]})
    assert [line["step"] for line in evaluations(run)] == [1, 2, 3]
    assert "eval_reward" in json.loads((run.outcome.output / "run.json").read_text())["training"]["stopped"]


def test_the_summary_names_the_reward_and_both_plots_are_drawn(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    run = bench.run(recipe(bench), plot=True)
    record = json.loads((run.outcome.output / "run.json").read_text())["training"]
    figures = [f"{record[name]:.4f}" for name in ("first_reward", "reward", "eval_reward")]
    assert "reward {} -> {}, held out {}\n".format(*figures) in capsys.readouterr().err
    for name in ("loss", "training_loss", "reward", "training_reward"):
        assert (run.outcome.output / f"{name}.png").read_bytes().startswith(b"\x89PNG")


#: What a run keeps beside the policy: coefficients that adapt from round to round, and a reference that follows.
KEPT = {"kl_estimator": "k1_in_reward", "beta": 0.1, "kl_target": 0.5, "kl_horizon": 40.0, "ref_model_sync_steps": 2}
KEPT |= {"entropy_target": 99.0, "entropy_coef_delta": 0.01}


def test_a_killed_run_evaluates_and_keeps_what_an_undisturbed_one_does(bench: Bench) -> None:
    """Its checkpoint lies within a round, and holds a reference whose next mixture is due before the step that comes."""
    asked = recipe(
        bench,
        algorithm={"num_mini_batches": 3, "stop": STOP, "top_entropy_quantile": 0.5} | KEPT,
        max_steps=8,
        save_every=4,
        batch_size=4,
        learning_rate=0.01,
    )
    whole = bench.run(asked, "whole")
    output, file = bench.path("killed"), bench.path("recipe.yaml")
    killer = [{"name": "gym-testkit/kill", "step": 5}]
    file.write_text(yaml.safe_dump({**asked, "output": str(output), "callbacks": killer}), encoding="utf-8")
    assert bench.gym("train", str(file)).returncode == -9
    again = bench.gym("train", str(file))
    assert again.returncode == 0, again.stderr
    resumed = bench.finished(execute(load_recipe(file)))
    assert timeless(resumed) == timeless(whole)
    for name in ("kl_coef", "entropy_coef"):
        assert len(set(whole.series(name))) == 3, f"another {name} each round"
    assert weights(resumed) == weights(whole)
    for folder, kind in {"rollouts": "", "checkpoints": "source.safetensors"}.items():  # which has reference and round
        assert fingerprint(output / folder, kind) == fingerprint(bench.root / "whole" / folder, kind), folder
    assert RolloutLog(output).steps(TRAINING) == [1, 4, 7]


def test_two_processes_measure_and_keep_what_one_does(bench: Bench) -> None:
    options = {"stop": STOP, "top_entropy_quantile": 0.5} | KEPT
    asked = recipe(bench, algorithm=options, batch_size=4, accumulate=2, learning_rate=0.01)
    alone = bench.run(asked, "alone")
    output, file = bench.path("shared"), bench.path("recipe.yaml")
    file.write_text(yaml.safe_dump({**asked, "output": str(output)}), encoding="utf-8")
    team = start(2, str(file))
    assert team.codes(within=240) == [0, 0], team.errors()
    shared = bench.finished(execute(load_recipe(file)))
    for one, other in zip(evaluations(alone), evaluations(shared), strict=True):
        assert one == pytest.approx(other, rel=1e-5)
    first, other = (RolloutLog(path).read(TRAINING, 1) for path in (Path(alone.outcome.output), output))
    assert [(one.id, one.answer) for one in first] == [(one.id, one.answer) for one in other]
    last = [load_file(path / "checkpoints/step-00000004/source.safetensors") for path in (bench.root / "alone", output)]
    references = [{name: each for name, each in found.items() if name.startswith("reference/")} for found in last]
    assert references[0]
    torch.testing.assert_close(*references, rtol=0, atol=1e-4)


def test_what_nothing_judged_is_not_measured(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    file = bench.path("judges.py")
    file.write_text("def silent(completions):\n    return [None for _ in completions]\n")
    silent = {"rewards": [{"name": "python", "function": f"{file}:silent"}]}
    run = bench.run(recipe(bench, algorithm=silent))
    assert not evaluations(run)
    assert "held out" not in capsys.readouterr().err


def test_where_no_reward_counts_the_divergence_is_shown_and_no_reward_tells_the_best(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    distilled = {"rewards": [{"name": "length", "maximum": 2, "weight": 0}], "beta": 1.0, "kl_estimator": "full"}
    distilled["ref_model"] = str(bench.model(seed=1))
    asked = recipe(bench, algorithm=distilled)
    record = json.loads((bench.run(asked).outcome.output / "run.json").read_text())["training"]
    figures = [f"{record[name]:.4f}" for name in ("first_kl", "kl")]
    assert "kl {} -> {}\n".format(*figures) in (said := capsys.readouterr().err) and "  kl " in said
    with pytest.raises(RecipeError, match=r"as good as the first") as refused:
        bench.run(asked, "best", keep_best=True)
    assert "metric_for_best_model: rewards/length/mean" in str(refused.value)

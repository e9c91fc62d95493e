"""Whole runs against a reference, and with a sampler that is not exactly the trainer."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from gym_core import GymError, execute, load_recipe
from gym_testkit.bench import Bench, fingerprint
from gym_testkit.team import start

torch.set_num_threads(1)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def recipe(bench: Bench, adapter: str | None = None, name: str = "reinforce_pp", **options: Any) -> dict[str, Any]:
    rewards = [{"name": "regex", "pattern": "[a-z]"}]
    algorithm = {"name": name, "rewards": rewards, "max_new_tokens": 6, **options}
    made = bench.recipe(algorithm, "prompt", batch_size=4, accumulate=2)
    return made | ({"adapter": adapter} if adapter else {})


@pytest.mark.parametrize("adapter", ["lora", None])
@pytest.mark.parametrize("kl", ["k3_is", "k1_in_reward", "full"])
def test_a_policy_departs_from_its_reference_and_that_is_measured(bench: Bench, adapter: str | None, kl: str) -> None:
    """Before the first step they are the same; the reference stays where it was."""
    kept = bench.run(recipe(bench, adapter, beta=0.1, kl_estimator=kl), "kept", max_steps=3, learning_rate=0.03)
    apart = kept.series("kl")
    assert apart[0] == pytest.approx(0, abs=1e-6)
    assert apart[-1] > 1e-4


def test_what_it_costs_to_depart_holds_a_policy_back(bench: Bench) -> None:
    departed = {}
    for beta in (1e-6, 10.0):
        run = bench.run(recipe(bench, beta=beta, kl_estimator="k3_is"), str(beta), max_steps=16, learning_rate=0.003)
        departed[beta] = fmean(run.series("kl")[8:])
    assert departed[10.0] < 0.7 * departed[1e-6]


FAILS_ONCE = """
from pathlib import Path

def judge(texts):
    calls = Path(__file__).with_suffix(".calls")
    calls.write_text("." + (calls.read_text() if calls.exists() else ""))
    if calls.read_text() == "...":
        raise OSError("the third round cannot be judged now")
    return [float(any(letter.islower() for letter in text)) for text in texts]
"""


def test_a_run_that_goes_on_has_the_same_reference(bench: Bench) -> None:
    """Also where it is a second copy: of the model before training, not of what the checkpoint holds."""
    outcomes = []
    for name in ("whole", "broken"):
        file = bench.path(f"{name}.py")
        file.write_text(FAILS_ONCE if name == "broken" else FAILS_ONCE.replace("...", "never"), encoding="utf-8")
        made = recipe(bench, beta=0.1, num_mini_batches=2, rewards=[{"name": "python", "function": f"{file}:judge"}])
        made["train"] |= {"max_steps": 6, "save_every": 3, "learning_rate": 0.03}
        if name == "broken":
            with pytest.raises(GymError, match="third round"):
                execute(load_recipe({**made, "output": str(bench.root / name)}))
        outcomes.append(bench.finished(execute(load_recipe({**made, "output": str(bench.root / name)}))))
    whole, broken = outcomes
    steps = {line["step"]: line["kl"] for line in broken.metrics if "loss" in line}
    assert [steps[number] for number in range(1, 7)] == whole.series("kl")
    assert steps[6] > 1e-4
    paths = (each.outcome.artifact.path for each in outcomes)
    assert len({str(fingerprint(path, ".safetensors")) for path in paths}) == 1


def test_two_processes_score_what_one_does(bench: Bench) -> None:
    """Each its share; all of them then know every column, and take the same steps."""
    made = recipe(bench, "lora", beta=0.1, num_mini_batches=2, top_p=0.8)
    made["train"] |= {"max_steps": 4, "batch_size": 2, "accumulate": 4}
    alone = bench.run(made, "alone")
    file = bench.path("recipe.yaml")
    file.write_text(yaml.safe_dump({**made, "output": str(bench.path("shared"))}), encoding="utf-8")
    team = start(2, str(file))
    assert team.codes(within=240) == [0, 0], team.errors()
    shared = bench.finished(execute(load_recipe(file)))
    assert shared.series("reward") == alone.series("reward")
    for key in ("loss", "kl", "ratio/mean", "ratio/max", "approx_kl"):
        assert shared.series(key) == pytest.approx(alone.series(key), rel=1e-4, abs=1e-5), key


def test_in_bf16_the_policy_of_a_round_is_scored_where_several_steps_learn_from_it(bench: Bench) -> None:
    made = recipe(bench, num_mini_batches=2)
    run = bench.run(made, max_steps=3, save_every=1, precision="bf16")
    fresh, *_ = run.metrics
    assert 1e-6 < fresh["sampling/sampling_logp_difference/mean"] < 0.1
    assert fresh["ratio/abs_dev"] == pytest.approx(0, abs=1e-6)
    checkpoint = max((run.outcome.output / "checkpoints").glob("*/source.safetensors"))
    columns = load_file(checkpoint)
    assert columns["columns/old_log_probs"].shape == columns["columns/sampling_log_probs"].shape
    assert not torch.equal(columns["columns/old_log_probs"], columns["columns/sampling_log_probs"])


def test_in_bf16_one_step_a_round_needs_no_further_pass(bench: Bench) -> None:
    run = bench.run(recipe(bench), max_steps=2, save_every=1, precision="bf16")
    checkpoint = max((run.outcome.output / "checkpoints").glob("*/source.safetensors"))
    assert not {"columns/old_log_probs", "columns/ref_log_probs"} & load_file(checkpoint).keys()
    assert all(
        line["ratio/abs_dev"] == 0 < line["sampling/sampling_logp_difference/mean"]
        for line in run.metrics
        if "loss" in line
    )


def test_a_sampler_that_is_too_far_from_the_trainer_is_refused_before_the_first_step(bench: Bench) -> None:
    with pytest.raises(GymError, match="differ") as raised:
        bench.run(recipe(bench, max_mismatch=1e-7), precision="bf16")
    assert "algorithm.max_mismatch" in str(raised.value)
    assert not (bench.root / "run" / "metrics.jsonl").read_text()

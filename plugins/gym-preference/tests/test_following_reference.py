"""A reference that follows the policy: losses are measured against where it is, also after a resume and in shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from gym_core import GymError, load_recipe
from gym_testkit.bench import Bench, fingerprint
from gym_testkit.team import start

torch.set_num_threads(1)
EVERY = 2


def recipe(bench: Bench, algorithm: str, alpha: float, rows: str = "preference", **train: Any) -> dict[str, Any]:
    follows = {"name": algorithm, "ref_model_sync_steps": EVERY, "ref_model_mixup_alpha": alpha}
    settings = {"max_steps": 6, "batch_size": 2, "save_every": 1, "keep_last": 9, "learning_rate": 0.01}
    return bench.recipe(follows, rows, **settings | {"precision": "fp32"} | train)


def held(output: Path, step: int) -> dict[str, torch.Tensor]:
    """Return the reference that a checkpoint holds."""
    file = output / "checkpoints" / f"step-{step:08d}" / "source.safetensors"
    found = load_file(file) if file.exists() else {}
    return {name.removeprefix("reference/"): weight for name, weight in found.items()}


@pytest.mark.parametrize(("algorithm", "streaming"), [("dpo", False), ("dpo", True), ("tdpo1", False)])
def test_where_it_became_the_policy_nothing_is_gained(bench: Bench, algorithm: str, streaming: bool) -> None:
    asked = recipe(bench, algorithm, 1.0)
    if streaming:
        asked["data"] = {"sources": asked["data"], "streaming": True}
    done = bench.run(asked, "run")
    gains, loss = (np.abs(done.series(key)) for key in ("rewards/margins", "loss"))
    assert gains[0::EVERY] == pytest.approx(0.0, abs=1e-6) and loss[0::EVERY] == pytest.approx(np.log(2), abs=1e-6)
    assert (gains[1::EVERY] > 1e-4).all(), "it stays where it is in between"


@pytest.mark.parametrize("algorithm", ["kto", "bco"])
def test_judged_answers_are_measured_against_it_too(bench: Bench, algorithm: str) -> None:
    done = bench.run(recipe(bench, algorithm, 1.0), "run")
    for side in ("chosen", "rejected"):
        gains = [line.get(f"rewards/{side}", 0.0) for line in done.metrics if "loss" in line]
        assert gains[0::EVERY] == pytest.approx([0.0] * 3, abs=1e-6)
    assert held(done.outcome.output, 6)


def test_it_is_the_mixture_after_every_so_many_steps(bench: Bench) -> None:
    output = bench.run(recipe(bench, "dpo", 0.3), "run").outcome.output
    expected = AutoModelForCausalLM.from_pretrained(bench.model(), dtype=torch.float64)
    for step in range(1, 7):
        found, own = held(output, step), dict(expected.named_parameters())
        assert bool(found) == (step > EVERY)
        for name, weight in found.items():
            torch.testing.assert_close(weight.double(), own[name], rtol=0, atol=1e-6)
        if step % EVERY == 0:  # the checkpoint of this step is written first
            trained = AutoModelForCausalLM.from_pretrained(
                output / "checkpoints" / f"step-{step:08d}", dtype=torch.float64
            )
            with torch.no_grad():
                for name, weight in trained.named_parameters():
                    own[name].lerp_(weight, 0.3)


@pytest.mark.parametrize(("algorithm", "step"), [("dpo", 5), ("kto", 4)])
def test_a_killed_run_goes_on_against_the_same_reference(bench: Bench, algorithm: str, step: int) -> None:
    asked = recipe(bench, algorithm, 0.3)
    whole = bench.run(asked, "whole")
    output, file = bench.path("killed"), bench.path("recipe.yaml")
    killer = [{"name": "gym-testkit/kill", "step": step}]
    file.write_text(yaml.safe_dump({**asked, "output": str(output), "callbacks": killer}), encoding="utf-8")
    assert bench.gym("train", str(file)).returncode == -9
    again = bench.gym("train", str(file))
    assert again.returncode == 0, again.stderr
    assert fingerprint(output / "model", ".safetensors") == fingerprint(whole.outcome.artifact.path, ".safetensors")


def test_processes_that_hold_shards_have_the_reference_of_one(bench: Bench) -> None:
    asked = recipe(bench, "dpo", 0.3, batch_size=4, max_steps=4) | {"distributed": "fsdp"}
    output, file = bench.path("shared"), bench.path("recipe.yaml")
    file.write_text(yaml.safe_dump({**asked, "output": str(output)}), encoding="utf-8")
    team = start(2, str(file))
    assert team.codes(within=240) == [0, 0], team.errors()
    alone = bench.run({**asked, "distributed": "ddp"}, "alone")
    for name, weight in held(alone.outcome.output, 4).items():
        torch.testing.assert_close(weight, held(output, 4)[name], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "adapter", "why"),
    [
        (
            {"precompute_ref_log_probs": True},
            None,
            "asks the reference once, and with `ref_model_sync_steps` it changes",
        ),
        ({"ref_model_sync_steps": None}, None, "`ref_model_mixup_alpha` does nothing without"),
        ({}, "lora", r"algorithm\.ref_model_sync_steps: the weights of the model do not train"),
        ({"sync_ref_model": True}, None, "did you mean `ref_model_sync_steps`"),
    ],
)
def test_what_cannot_follow_is_refused_by_name(
    bench: Bench, options: dict[str, Any], adapter: str | None, why: str
) -> None:
    asked = recipe(bench, "dpo", 0.3) | ({"adapter": adapter} if adapter else {})
    with pytest.raises(GymError, match=why):
        load_recipe(asked | {"algorithm": asked["algorithm"] | options}).check()

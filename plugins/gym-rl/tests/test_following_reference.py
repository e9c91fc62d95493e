"""A reference that follows the policy: it is the mixture that the paper writes, after every so many steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from gym_core import GymError, load_recipe
from gym_testkit.bench import Bench

torch.set_num_threads(1)
ALPHA, EVERY = 0.3, 2
REWARDS = [{"name": "length", "maximum": 2, "slack": 14}]


def recipe(bench: Bench, algorithm: dict[str, Any] | None = None, **train: Any) -> dict[str, Any]:
    follows = {"beta": 0.1, "ref_model_sync_steps": EVERY, "ref_model_mixup_alpha": ALPHA}
    options = {"name": "grpo", "rewards": REWARDS, "group_size": 4, "max_new_tokens": 8, **follows}
    settings = {"max_steps": 6, "save_every": 1, "keep_last": 9, "learning_rate": 0.01, "precision": "fp32"}
    return bench.recipe(options | (algorithm or {}), "prompt", **settings | train)


def checkpoint(output: Path, step: int) -> Path:
    return output / "checkpoints" / f"step-{step:08d}"


def held(output: Path, step: int) -> dict[str, torch.Tensor]:
    """Return the reference that a checkpoint holds."""
    found = load_file(checkpoint(output, step) / "source.safetensors")
    return {name.removeprefix("reference/"): weight for name, weight in found.items() if name.startswith("reference/")}


def policy(folder: Path) -> dict[str, torch.Tensor]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return {name: weight.detach().double() for name, weight in model.named_parameters()}


@pytest.mark.parametrize("estimator", ["k3_is", "k1_in_reward"])
def test_it_is_the_mixture_after_every_so_many_steps(bench: Bench, estimator: str) -> None:
    done = bench.run(recipe(bench, {"kl_estimator": estimator}), "run")
    output, expected = done.outcome.output, policy(bench.model())
    for step in range(1, 7):
        found = held(output, step)
        assert bool(found) == (step > EVERY)
        for name, weight in found.items():
            torch.testing.assert_close(weight.double(), expected[name], rtol=0, atol=1e-6)
        if step % EVERY == 0:  # the checkpoint of this step is written first
            trained = policy(checkpoint(output, step))
            expected = {name: ALPHA * trained[name] + (1 - ALPHA) * old for name, old in expected.items()}


@pytest.mark.parametrize(
    ("options", "adapter", "why"),
    [
        ({"beta": 0.0}, None, "`ref_model_sync_steps` does nothing where `beta` is 0"),
        ({"ref_model_sync_steps": None}, None, "`ref_model_mixup_alpha` does nothing without"),
        ({}, "lora", "algorithm.ref_model_sync_steps: the weights of the model do not train"),
        ({"ref_model_sync_steps": None, "ref_model_mixup_alpha": 0.6, "sync_ref_model": True}, None, "ref_model_sync"),
    ],
)
def test_what_cannot_follow_is_refused_by_name(
    bench: Bench, options: dict[str, Any], adapter: str | None, why: str
) -> None:
    asked = recipe(bench, options) | ({"adapter": adapter} if adapter else {})
    with pytest.raises(GymError) as caught:
        load_recipe(asked).check()
    assert why in str(caught.value)

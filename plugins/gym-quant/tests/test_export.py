"""A recipe that trains over a quantized base, quantizes what came of it in another way, and exports it too."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from gym_core import Artifact, execute, load_recipe
from gym_core.cli import run as gym
from gym_core.errors import OK
from gym_testkit.bench import Bench
from gym_testkit.tiny import write_model
from gym_torch.checkpoints.open_artifact import opened

TOKENS = torch.tensor([[5, 3, 8, 1, 9, 2, 2, 7]])


def test_export_takes_what_was_trained_and_the_quantized_model_stands_beside_it(bench: Bench, tmp_path: Path) -> None:
    recipe = bench.recipe("sft", max_steps=2) | {
        "adapter": {"name": "lora", "rank": 4},
        "quantization": {"name": "rtn", "bits": 8, "group_size": 16},
        "export": "safetensors",
        "output": str(tmp_path / "run"),
    }
    recipe["model"] = {"path": recipe["model"], "quantization": "bnb_4bit"}
    outcome = execute(load_recipe(recipe))
    assert outcome.artifact.path == tmp_path / "run" / "quantized"
    (exported,) = outcome.exports
    trained = opened(Artifact.from_json(outcome.artifact.details["quantized_from"], tmp_path / "run"))
    wanted = dict(trained.plain().weights)
    found = load_file(exported / "model.safetensors")
    assert found.keys() <= wanted.keys() and all(torch.equal(weight, wanted[name]) for name, weight in found.items())
    whole, small = (AutoModelForCausalLM.from_pretrained(path) for path in (exported, outcome.artifact.path))
    with torch.no_grad():
        left, right = whole(TOKENS).logits, small(TOKENS).logits
    assert 0 < (left - right).norm() < 0.05 * left.norm(), "8 bits are near"
    shutil.move(tmp_path / "run", tmp_path / "moved")
    assert gym(["export", str(tmp_path / "moved"), "--into", str(tmp_path / "again")]) == OK
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (
        tmp_path / "moved" / "export" / "safetensors" / "model.safetensors"
    ).read_bytes()
    assert gym(["quantize", str(tmp_path / "moved"), "--with", "fp8", "holdout_samples=4"]) == OK
    assert (tmp_path / "moved" / "quantized-fp8" / "model.safetensors").exists()
    longer = execute(load_recipe(recipe | {"output": str(tmp_path / "moved")}, ["train.max_steps=3"]))
    assert longer.artifact.path == tmp_path / "moved" / "quantized" and not longer.repeated


def test_a_base_that_was_moved_is_named(bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To `gym export` and `gym quantize`; another one in its place is refused by its weights."""
    base = shutil.copytree(bench.model(), tmp_path / "base")
    recipe = bench.recipe("sft", max_steps=1) | {"adapter": {"name": "lora", "rank": 4}, "model": str(base)}
    execute(load_recipe(recipe | {"output": str(tmp_path / "run")}))
    moved, words = str(base.rename(tmp_path / "moved")), ["export", str(tmp_path / "run")]
    assert gym(words) != OK and "--base PATH" in capsys.readouterr().err
    other = str(write_model(tmp_path / "other", seed=9))
    assert gym([*words, "--base", other]) != OK and "belongs to another base" in capsys.readouterr().err
    assert (
        gym([*words, "--base", moved]) == OK and gym(["export", moved, "--into", moved + "-2", "--base", moved]) != OK
    )
    assert gym([*words, "--base", moved, "--verify"]) == OK
    assert gym(["quantize", *words[1:], "--base", moved, "--with", "rtn", "holdout_samples=4"]) == OK

"""Whole runs with every adapter there is: counted as planned, and continued after a crash with the same bits."""

from __future__ import annotations

import json
import shutil
from math import prod
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import gym_torch.trainer
from gym_core import execute, load_recipe
from gym_core.discovery import entries
from gym_testkit.architectures import write_mixture
from gym_testkit.bench import Bench
from gym_torch.plan.plan import plan

ADAPTERS: dict[str, dict[str, Any]] = {
    "full": {},
    "freeze": {"layers": 1},
    "lora": {"rank": 4, "dropout": 0.1},
    "rslora": {"rank": 4},
    "dora": {"rank": 4},
    "pissa": {"rank": 4},
    "olora": {"rank": 4},
    "lora_ga": {"rank": 4},
    "eva": {"rank": 4},
    "loftq": {"rank": 4},
    "adalora": {"rank": 4, "target_rank": 2},
    "loha": {"rank": 2},
    "lokr": {"rank": 2},
    "vera": {"rank": 8, "dropout": 0.2},
    "oft": {"block": 8},
    "boft": {"block": 4},
    "ia3": {},
    "ln_tuning": {},
    "trainable_tokens": {"tokens": [97, 98, "<|im_end|>"]},
    "prompt_tuning": {"tokens": 4},
    "prefix_tuning": {"tokens": 4},
    "llama_pro": {"blocks": 2},
    "longlora": {"rank": 2, "dropout": 0.1},
    "expert_lora": {"rank": 2, "modules": "q_proj"},
}


def test_none_is_left_out() -> None:
    assert {entry.name for entry in entries("adapters") if entry.dist == "gym-adapters"} == ADAPTERS.keys()


def crashed_after_three_steps(output: Path) -> None:
    """Leave what a process leaves that dies between its third step and its sixth."""
    shutil.rmtree(output / "model")
    shutil.rmtree(output / "checkpoints" / "step-00000006")
    record = json.loads((output / "run.json").read_text())
    (output / "run.json").write_text(json.dumps(record | {"status": "running"}))


@pytest.mark.parametrize("name", ADAPTERS)
def test_it_is_planned_trained_and_continued(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)
    recipe = bench.recipe("sft", save_every=3, max_steps=6) | {"output": str(tmp_path / "run")}
    recipe["adapter"] = {"name": name, **ADAPTERS[name]}
    if name == "expert_lora":
        recipe["model"] = str(write_mixture(tmp_path / "mixture", bench.model()))
    planned = plan(load_recipe(recipe))
    execute(load_recipe(recipe))
    output = tmp_path / "run"
    whole = {file.name: load_file(file) for file in (output / "model").glob("*.safetensors")}
    lines = (output / "metrics.jsonl").read_text().splitlines()
    state = json.loads((output / "checkpoints" / "step-00000003" / "state.json").read_text())
    assert planned.trainable == sum(prod(shape) for shape in state["shapes"].values())
    crashed_after_three_steps(output)

    def never(*_: Any) -> Any:
        raise AssertionError("the first values were found a second time")

    monkeypatch.setattr(gym_torch.trainer, "first_step", never)
    execute(load_recipe(recipe))
    again = {file.name: load_file(file) for file in (output / "model").glob("*.safetensors")}
    assert again.keys() == whole.keys()
    for file, tensors in whole.items():
        assert tensors.keys() == again[file].keys()
        assert all(tensor.equal(again[file][name]) for name, tensor in tensors.items())
    assert [_figures(line) for line in (output / "metrics.jsonl").read_text().splitlines()] == [
        _figures(line) for line in lines
    ]


def _figures(line: str) -> dict[str, Any]:
    return {key: value for key, value in json.loads(line).items() if key not in {"tokens_per_second", "seconds"}}

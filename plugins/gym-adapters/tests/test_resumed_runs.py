"""Whole runs with every adapter there is: counted as planned, and continued after a crash with the same bits."""

from __future__ import annotations

import json
import shutil
from math import prod
from pathlib import Path
from typing import Any

import pytest
from adapters_bench import ADAPTERS
from safetensors.torch import load_file

import gym_torch.assembly
from gym_core import execute, load_recipe
from gym_core.discovery import entries
from gym_plan.plan import plan
from gym_testkit.architectures import write_mixture
from gym_testkit.bench import Bench


def test_none_is_left_out() -> None:
    assert {entry.name for entry in entries("adapters") if entry.dist == "gym-adapters"} == ADAPTERS.keys()


def crashed_after_three_steps(output: Path) -> None:
    """Leave what a process leaves that dies between its third step and its sixth."""
    shutil.rmtree(output / "model")
    shutil.rmtree(output / "checkpoints" / "step-00000006")
    record = json.loads((output / "run.json").read_text())
    (output / "run.json").write_text(json.dumps(record | {"status": "running"}))


@pytest.mark.proves("full")
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

    monkeypatch.setattr(gym_torch.assembly, "first_step", never)
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

"""Whole runs with each adapter: counted as planned, and continued after a crash with the same bits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from gym_core import execute, load_recipe
from gym_testkit.bench import Bench
from gym_torch.plan.plan import plan

ADAPTERS: list[dict[str, Any]] = [
    {"name": "loha", "rank": 2},
    {"name": "lokr", "rank": 2},
    {"name": "vera", "rank": 8, "dropout": 0.2},
    {"name": "oft", "block": 8},
    {"name": "boft", "block": 4},
    {"name": "ia3"},
    {"name": "ln_tuning"},
    {"name": "trainable_tokens", "tokens": [97, 98, "<|im_end|>"]},
    {"name": "prompt_tuning", "tokens": 4},
    {"name": "prefix_tuning", "tokens": 4},
    {"name": "llama_pro", "blocks": 2},
    {"name": "longlora", "rank": 2, "dropout": 0.1},
]


def crashed_after_three_steps(output: Path) -> None:
    """Leave what a process leaves that dies between its third step and its sixth."""
    shutil.rmtree(output / "model")
    shutil.rmtree(output / "checkpoints" / "step-00000006")
    record = json.loads((output / "run.json").read_text())
    (output / "run.json").write_text(json.dumps(record | {"status": "running"}))


@pytest.mark.parametrize("adapter", ADAPTERS, ids=[each["name"] for each in ADAPTERS])
def test_it_is_planned_trained_and_continued(adapter: dict[str, Any], tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    recipe = bench.recipe("sft", save_every=3, max_steps=6) | {"adapter": adapter, "output": str(tmp_path / "run")}
    planned = plan(load_recipe(recipe))
    execute(load_recipe(recipe))
    output = tmp_path / "run"
    whole = {file.name: load_file(file) for file in (output / "model").glob("*.safetensors")}
    lines = (output / "metrics.jsonl").read_text().splitlines()
    state = json.loads((output / "checkpoints" / "step-00000003" / "state.json").read_text())
    trained = sum(_size(shape) for shape in state["shapes"].values())
    assert planned.trainable == trained
    crashed_after_three_steps(output)
    execute(load_recipe(recipe))
    again = {file.name: load_file(file) for file in (output / "model").glob("*.safetensors")}
    assert again.keys() == whole.keys()
    for file, tensors in whole.items():
        assert tensors.keys() == again[file].keys()
        assert all(tensor.equal(again[file][name]) for name, tensor in tensors.items())
    assert [_figures(line) for line in (output / "metrics.jsonl").read_text().splitlines()] == [
        _figures(line) for line in lines
    ]


def _size(shape: list[int]) -> int:
    size = 1
    for side in shape:
        size *= side
    return size


def _figures(line: str) -> dict[str, Any]:
    return {key: value for key, value in json.loads(line).items() if key not in {"tokens_per_second", "seconds"}}

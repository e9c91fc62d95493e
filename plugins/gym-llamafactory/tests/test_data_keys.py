"""Keys about how rows are read, and about what is held out of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gym_core import RecipeError, execute, load_recipe
from gym_testkit.bench import Bench


def test_streaming(bench: Bench) -> None:
    keys = {
        "model_name_or_path": str(bench.model()), "stage": "sft", "do_train": True, "dataset": str(bench.data("conversation")),
        "finetuning_type": "full", "output_dir": str(bench.path("out")), "streaming": True, "buffer_size": 4,
        "per_device_train_batch_size": 3,
    }  # fmt: skip
    with pytest.raises(RecipeError, match="no end that is known"):
        load_recipe(keys).check()
    with pytest.raises(RecipeError, match="a share of rows without an end"):
        load_recipe(keys | {"max_steps": 3, "val_size": 0.1})
    recipe = load_recipe(keys | {"max_steps": 3, "val_size": 2})
    assert recipe.data is not None and recipe.data.model_dump(include={"streaming", "buffer_size", "validation"}) == {
        "streaming": True, "buffer_size": 4, "validation": 2.0
    }  # fmt: skip
    execute(load_recipe(keys | {"max_steps": 3, "val_size": 2}))
    record = json.loads((bench.root / "out" / "run.json").read_text())
    assert record["data"]["report"]["validation"] == 2 and record["training"]["steps"] == 3


def test_each_dataset_is_measured_by_its_name_and_answers_by_their_tokens(bench: Bench) -> None:
    info = {name: {"file_name": f"{name}.json"} for name in "abc"}
    bench.path("dataset_info.json").write_text(json.dumps(info))
    for number, name in enumerate(info):
        rows = [{"instruction": name * 3, "output": f"{name} {row}"} for row in range(3 + number)]
        bench.path(f"{name}.json").write_text(json.dumps(rows))
    keys: dict[str, Any] = {
        "model_name_or_path": str(bench.model()), "stage": "sft", "do_train": True, "dataset": "a", "eval_dataset": "b,c",
        "dataset_dir": str(bench.root), "finetuning_type": "full", "template": "chatml", "eval_on_each_dataset": True,
        "compute_accuracy": True, "max_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "output_dir": str(bench.path("out")),
    }  # fmt: skip
    output = execute(load_recipe(keys)).output
    lines = [json.loads(line) for line in Path(output / "metrics.jsonl").read_text().splitlines()]
    assert {"eval_b_loss", "eval_c_loss", "eval_loss", "eval_accuracy"} <= lines[-1].keys()
    with pytest.raises(RecipeError, match="belongs to algorithm `sft`"):
        load_recipe(keys | {"stage": "dpo"})
    load_recipe(keys | {"stage": "pt", "compute_accuracy": False, "template": None})


def test_blocks_of_plain_text_have_the_length_that_they_have_there() -> None:
    """Where `packing` stands, LLaMA-Factory takes one off `cutoff_len`, and not where it is left out."""
    keys = {"model_name_or_path": "tiny", "dataset": "identity", "cutoff_len": 64, "output_dir": "runs/x"}
    for more, length in (
        ({"stage": "pt"}, 64),
        ({"stage": "pt", "packing": True}, 63),
        ({"stage": "pt", "packing": False}, 64),
        ({"stage": "sft", "packing": False}, 64),
    ):
        data = load_recipe(keys | more).data
        assert data is not None and data.model_dump()["cutoff"] == length, more

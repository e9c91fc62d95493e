"""A study of the tiny model by a file of LLaMA-Factory, in its own keys: it learns more with a better learning rate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gym_core import load_recipe
from gym_tune.study import read_study
from gym_tune.tuning import prepared, tuned


def test_a_file_of_llamafactory_is_tuned_in_its_own_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GYM_CACHE", str(tmp_path / "cache"))
    rows = [{"instruction": f"What is the colour of {word}?", "output": "It is green."} for word in "abcdefghijklmnop"]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    (tmp_path / "dataset_info.json").write_text(json.dumps({"rows": {"file_name": "rows.json"}}))
    base = {
        "model_name_or_path": "tiny", "stage": "sft", "do_train": True, "finetuning_type": "lora", "dataset": "rows",
        "dataset_dir": str(tmp_path), "template": "default", "val_size": 0.25, "max_steps": 4, "learning_rate": 1e-6,
        "eval_strategy": "steps", "eval_steps": 2, "logging_steps": 1, "overwrite_output_dir": True,
        "output_dir": str(tmp_path / "alone"),
    }  # fmt: skip
    (tmp_path / "theirs.yaml").write_text(json.dumps(base))
    study = {
        "recipe": "theirs.yaml",
        "space": {
            "learning_rate": {"low": 1e-6, "high": 1e-2, "log": True},
            "lora_rank": {"low": 4, "high": 8, "step": 4},
        },
        "starting_points": [{"learning_rate": 5e-3, "lora_rank": 4}],
        "n_trials": 2,
        "output": str(tmp_path / "study"),
    }
    (tmp_path / "tune.yaml").write_text(json.dumps(study))
    file = read_study(tmp_path / "tune.yaml")
    found = tuned(file)
    assert found["trials"]["complete"] == 2 and found["own"]["values"] == {"learning_rate": 1e-6, "lora_rank": 8}
    assert found["best"]["trial"] == 1 and found["best"]["value"] < found["own"]["value"] - 0.01
    runs = [json.loads((tmp_path / f"study/trials/{number:04d}/run.json").read_text()) for number in range(2)]
    assert [run["data"]["report"]["cached"] for run in runs] == [False, True], "tokens are made once"
    best = load_recipe(tmp_path / "study/best.yaml")
    meant = prepared(file)[0].with_values(found["best"]["values"])
    assert best.fingerprint() == meant.fingerprint() and best.train.learning_rate == 5e-3
    assert not best.train.overwrite and best.output == str(tmp_path / "study/best")

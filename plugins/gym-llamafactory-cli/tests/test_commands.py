"""Each command of theirs becomes one of Gym's, and what is not there is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gym_core.errors import RecipeError
from gym_llamafactory_cli.commands import COMMANDS, run
from gym_llamafactory_cli.words import keys_of
from gym_testkit import tiny


def means(name: str, words: list[str], folder: Path, **environment: str) -> list[list[str]]:
    return COMMANDS[name](words, environment, folder)


def test_words_are_a_file_with_changes_or_flags(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("stage: sft\nlora_rank: 8\n")
    assert keys_of([str(file), "lora_rank=4", "learning_rate=1e-4"]) == {
        "stage": "sft",
        "lora_rank": 4,
        "learning_rate": 1e-4,
    }
    flags = ["--stage", "sft", "--do-train", "--lora_rank=4", "--report_to", "wandb", "mlflow", "--bf16", "False"]
    told = {"stage": "sft", "do_train": True, "lora_rank": 4, "report_to": ["wandb", "mlflow"], "bf16": False}
    assert keys_of(flags) == told
    for words, why in (
        (["sft"], "no file and no flag"),
        ([str(file), "--x"], "not key=value"),
        (["no.yaml"], "cannot be read"),
    ):
        with pytest.raises(RecipeError, match=why):
            keys_of(words)


def test_commands_are_gyms(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("do_predict: true\n")
    train, predict = ["train", str(file)], ["predict", str(file)]
    assert means("train", [str(file)], tmp_path) == [predict] == means("eval", [str(file)], tmp_path)
    file.write_text("do_train: true\ndo_predict: true\n")
    assert means("train", [str(file), "a=1"], tmp_path) == [[*train, "a=1"], [*predict, "a=1"]]
    file.write_text("do_train: true\n")
    assert means("train", [str(file)], tmp_path, NPROC_PER_NODE="2") == [[*train, "--nproc", "2"]]
    assert means("export", [str(file)], tmp_path) == [["export", str(file)]]
    assert (
        means("webui", [], tmp_path, GRADIO_SERVER_PORT="9")
        == [["webui", "--port", "9"]]
        == means("webchat", [], tmp_path, GRADIO_SERVER_PORT="9")
    )
    assert means("api", [str(file)], tmp_path, API_PORT="9") == [["api", str(file), "--port", "9"]]
    written = means("chat", [str(file), "template=qwen"], tmp_path)[0][1]
    assert yaml.safe_load(Path(written).read_text()) == {"do_train": True, "template": "qwen"}


def test_what_is_not_there_is_named(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "task.yaml").write_text("task: mmlu_test\n")
    for words, why in (
        (["eval", str(tmp_path / "task.yaml")], "gym eval MODEL --tasks mmlu"),
        (["tran"], "one of"),
    ):
        assert run(words, {}) == 2 and why in capsys.readouterr().err
    assert run(["version"], {}) == 0 and "gym" in capsys.readouterr().out


def test_flags_train(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps([{"instruction": f"say {n}", "output": str(n)} for n in range(8)]))
    (tmp_path / "dataset_info.json").write_text(json.dumps({"rows": {"file_name": "rows.json"}}))
    told = {
        "stage": "sft",
        "do_train": "True",
        "model_name_or_path": tiny.write_model(tmp_path / "tiny"),
        "dataset": "rows",
    }
    told |= {
        "dataset_dir": tmp_path,
        "output_dir": tmp_path / "out",
        "template": "qwen",
        "max_steps": "1",
        "plot_loss": "False",
    }
    assert run(["train", *(word for key, value in told.items() for word in (f"--{key}", str(value)))], {}) == 0
    assert (tmp_path / "out/adapter_model.safetensors").is_file()

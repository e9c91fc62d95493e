"""`gym predict`: the rows that a run held out, by the tokens of training; a file of LLaMA-Factory; and going on."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from gym_core import execute, load_recipe
from gym_core.cli import run
from gym_predict.rows import known
from gym_testkit import tiny

ROWS = [{"instruction": f"What is {number}?", "output": f"It is {number}."} for number in range(12)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that held out four of twelve rows."""
    folder = tmp_path_factory.mktemp("predict")
    (folder / "rows.json").write_text(json.dumps(ROWS))
    (folder / "dataset_info.json").write_text(json.dumps({"known": {"file_name": "rows.json"}}))
    model = tiny.write_model(folder / "tiny")
    recipe = {"model": str(model), "data": {"sources": str(folder / "rows.json"), "validation": 4}, "algorithm": "sft"}
    execute(load_recipe(recipe | {"train": {"max_steps": 1, "batch_size": 2}, "output": str(folder / "run")}))
    return folder


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "generated_predictions.jsonl").read_text().splitlines()]


def test_what_was_held_out_is_answered_and_goes_on_where_it_stopped(trained: Path, capsys: Any) -> None:
    words = ["predict", str(trained / "run"), "max_tokens=4", "temperature=0.5", "--json"]
    assert run(words) == 0
    told = json.loads(capsys.readouterr().out)
    found, folder = read(trained / "run/predict"), Path(told["output"])
    assert len(found) == 4 == told["results"]["predict_samples"]
    for row in found:
        number = row["prompt"].partition("What is ")[2].partition("?")[0]
        assert row["prompt"].endswith("<|im_start|>assistant\n") and row["label"] == f"It is {number}."
    results = json.loads((folder / "predict_results.json").read_text())
    assert results == told["results"] and 0 <= results["predict_bleu-4"] <= 100
    answers = next(folder.glob("predictions/*/answers.jsonl"))
    lines = answers.read_bytes().splitlines(keepends=True)
    answers.write_bytes(b"".join(lines[:2]) + lines[2][:5])  # as a killed process leaves it
    assert run(words) == 0 and answers.read_bytes() == b"".join(lines) and read(folder) == found


@pytest.mark.parametrize(("typed", "meant"), [("temprature", "temperature"), ("max_new_tokens", "max_tokens")])
def test_a_misspelt_option_is_answered_with_that_of_this_command(
    trained: Path, capsys: Any, typed: str, meant: str
) -> None:
    """A recipe, which the words change as well, may have a name that is like it."""
    assert run(["predict", str(trained / "run"), f"{typed}=1"]) == 2
    assert f"{typed}: unknown key\n  -> did you mean `{meant}`?" in capsys.readouterr().err


def test_a_base_that_was_moved_is_named(tmp_path: Path, capsys: Any) -> None:
    """By nobody, it is an error that says how; another one in its place is refused by its weights."""
    base, rows = tiny.write_model(tmp_path / "base"), tmp_path / "rows.json"
    rows.write_text(json.dumps(ROWS))
    recipe = {"model": str(base), "data": {"sources": str(rows), "validation": 2}, "algorithm": "sft"}
    recipe |= {"adapter": "lora", "train": {"max_steps": 1}, "output": str(tmp_path / "run")}
    execute(load_recipe(recipe))
    moved = base.rename(tmp_path / "moved")
    words = ["predict", str(tmp_path / "run"), "max_tokens=4", "--json"]
    assert run(words) == 1 and "base=PATH" in capsys.readouterr().out
    other = tiny.write_model(tmp_path / "other", seed=9)
    assert run([*words, f"base={other}"]) == 1 and "belongs to another base" in capsys.readouterr().out
    assert run([*words, f"base={moved}"]) == 0
    assert json.loads(capsys.readouterr().out)["results"]["predict_samples"] == 2
    assert run(["predict", str(moved), f"base={moved}"]) != 0


SPOKEN = (
    "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>{{ m.content }}<|im_end|>"
    "{% else %}<|im_start|>thoughts {{ m.reasoning_content }}<|im_end|><|im_start|>{{ m.content }}<|endoftext|>{% endif %}"
    "{% endfor %}"
)


def test_special_tokens_within_an_answer_do_not_end_it(trained: Path) -> None:
    """A template with channels for thoughts and answers begins each of them with a special token."""
    answer = {"role": "assistant", "content": "four", "reasoning_content": "hm"}
    (trained / "thoughts.jsonl").write_text(
        "".join(json.dumps({"messages": [{"role": "user", "content": f"{n}?"}, answer]}) + "\n" for n in range(4))
    )
    data = {"sources": str(trained / "thoughts.jsonl"), "template": {"name": "jinja", "text": SPOKEN}, "validation": 2}
    found = known(load_recipe({"model": str(trained / "tiny"), "data": data, "algorithm": "sft"}), everything=False)
    assert found.answers == ["thoughts hmfour"] * 2 and len(found.ends) == 1
    cut = load_recipe({"model": str(trained / "tiny"), "data": data | {"cutoff": 8}, "algorithm": "sft"})
    assert not known(cut, everything=False).ends


def test_prompts_that_are_trained_on_are_prompts_and_no_part_of_the_answer(trained: Path) -> None:
    """The rows are those that the run held out, though other rows are left where the prompts of some fill the cutoff."""
    rows = [
        {"instruction": f"What is {n}?" + " and more" * 40 * (n % 3 == 0), "output": f"It is {n}."} for n in range(12)
    ]
    (trained / "long.json").write_text(json.dumps(rows))
    data = {"sources": str(trained / "long.json"), "validation": 5, "train_on": "all", "cutoff": 150}
    recipe = load_recipe({"model": str(trained / "tiny"), "data": data, "algorithm": "sft"})
    build: Any = recipe.data.build  # type: ignore[union-attr]
    held = build(tokenizer=trained / "tiny", rows="conversation", seed=recipe.train.seed).validation
    numbers = sorted(int(each.id.rpartition(":")[2]) - 1 for each in held)
    short = [number for number in numbers if number % 3]
    assert len(short) < len(numbers) == 5
    found = known(recipe, everything=False)
    assert sorted(found.answers) == sorted(f"It is {number}." for number in short)
    assert all(text.endswith("<|im_start|>assistant\n") for text in found.texts)


def test_all_rows_of_a_stream_are_answered_and_not_its_first_window_alone(trained: Path) -> None:
    data = {"sources": str(trained / "rows.json"), "streaming": True, "buffer_size": 3, "validation": 2}
    recipe = load_recipe({"model": str(trained / "tiny"), "data": data, "algorithm": "sft"})
    assert known(recipe, everything=False).answers == ["It is 0.", "It is 1."]
    assert sorted(known(recipe, everything=True).answers) == sorted(row["output"] for row in ROWS)


def test_rows_of_a_run_that_held_out_nothing_are_named_by_the_user(trained: Path, capsys: Any) -> None:
    assert run(["predict", str(trained / "run"), "data.validation=0"]) == 2
    assert "nothing is held out" in capsys.readouterr().err
    whole = ["predict", str(trained / "run"), "data.validation=0", "rows=all", "max_tokens=1"]
    assert run([*whole, f"output={trained / 'whole'}"]) == 0 and len(read(trained / "whole")) == 12


def test_the_answer_of_a_pair_is_the_chosen_one(trained: Path, capsys: Any) -> None:
    """A run that learns from pairs has these alone, and what it says by now is compared with what was preferred."""
    sides = {"chosen": "It is 1.", "rejected": "It is 2."}
    (trained / "pairs.json").write_text(json.dumps([{"prompt": f"What is {n}?", **sides} for n in range(3)]))
    (trained / "texts.json").write_text(json.dumps([{"text": "It is what it is."}]))
    asked = ["predict", str(trained / "run"), "data.validation=0", "rows=all", "max_tokens=1"]
    assert run([*asked, f"data.sources={trained / 'pairs.json'}", f"output={trained / 'pairs'}"]) == 0
    assert [row["label"] for row in read(trained / "pairs")] == ["It is 1."] * 3
    assert all(row["prompt"].endswith("<|im_start|>assistant\n") for row in read(trained / "pairs"))
    assert run([*asked, f"data.sources={trained / 'texts.json'}"]) != 0
    assert "rows have no answer that others could be compared with" in capsys.readouterr().err


def test_answers_are_those_of_the_weights_that_are_there(trained: Path) -> None:
    """Not those of other weights that lay there, whatever a copy says of when it was written."""
    folder = shutil.copytree(trained / "tiny", trained / "other")
    file, weights = trained / "other.yaml", folder / "model.safetensors"
    keys = {"model_name_or_path": str(folder), "stage": "sft", "do_predict": True, "predict_with_generate": True}
    keys |= {"eval_dataset": "known", "dataset_dir": str(trained), "max_samples": 3, "output_dir": str(trained / "of")}
    file.write_text(yaml.safe_dump(keys | {"template": "qwen", "max_new_tokens": 8, "do_sample": False}))
    assert run(["predict", str(file)]) == 0
    before, written = read(trained / "of"), weights.stat()
    shutil.copy(tiny.write_model(trained / "seeded", seed=1) / weights.name, weights)
    os.utime(weights, ns=(written.st_atime_ns, written.st_mtime_ns))
    assert run(["predict", str(file)]) == 0 and read(trained / "of") != before


def test_what_prompts_are_told_is_said_by_the_recipe(trained: Path, capsys: Any) -> None:
    assert run(["predict", str(trained / "run"), "system=Be kind.", "max_tokens=1", f"output={trained / 'kind'}"]) == 0
    assert all("Be kind." in row["prompt"] for row in read(trained / "kind"))
    assert run(["predict", str(trained / "run"), "enable_thinking=false"]) == 2
    assert "unknown key" in capsys.readouterr().err


def test_a_file_of_llamafactory(trained: Path, capsys: Any) -> None:
    file = trained / "predict.yaml"
    keys = {"model_name_or_path": str(trained / "tiny"), "stage": "sft", "do_predict": True, "finetuning_type": "lora"}
    keys |= {"eval_dataset": "known", "dataset_dir": str(trained), "template": "qwen", "max_samples": 3}
    keys |= {"predict_with_generate": True, "max_new_tokens": 2, "output_dir": str(trained / "there")}
    file.write_text(yaml.safe_dump(keys))
    assert run(["predict", str(file), "do_sample=false"]) == 0
    found = read(trained / "there")
    assert len(found) == 3 and found[0]["prompt"].startswith("<|im_start|>system\nYou are Qwen")
    # the line break is learnt there
    assert [row["label"] for row in found] == [row["output"] + "\n" for row in ROWS[:3]]
    assert "predict_rouge-l" in json.loads((trained / "there/all_results.json").read_text())
    assert run(["train", str(file)]) == 2 and "run `gym predict` on it" in capsys.readouterr().err
    assert run(["predict", str(file), "predict_with_generate=false"]) == 2
    assert "asks for no answers" in capsys.readouterr().err

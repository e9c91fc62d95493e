"""Files that say something odd: what they mean there, or an error that names the key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gym_core import DataError, RecipeError, load_recipe
from gym_llamafactory import translation
from gym_llamafactory.keys.run import KEEP_ALL
from gym_testkit.bench import Bench

KEYS = {"model_name_or_path": "tiny", "stage": "sft", "dataset": "identity", "template": "chatml", "finetuning_type": "full",
        "max_steps": 1, "output_dir": "runs/x"}  # fmt: skip


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ({"bf16": "yes"}, "bf16: is true or false, not `yes`"),
        ({"bf16": True, "pure_bf16": True}, "give one"),
        ({"train_on_prompt": 1}, "is true or false, not `1`"),
        ({"stage": "dpo", "train_on_prompt": True}, "train_on_prompt: goes with `stage: sft`"),
        ({"stage": "pt", "mask_history": True, "template": None}, "mask_history: goes with `stage: sft`"),
        ({"stage": "dpo", "neat_packing": True}, "neat_packing: goes with `stage: sft`"),
        ({"train_on_prompt": True, "mask_history": True}, "mask_history: contradicts `train_on_prompt`"),
        ({"recompute_granularity": "some"}, "is full or selective, not `some`"),
        ({"warmup_ratio": 1.5}, "below 1"),
        ({"report_to": ["none", "tensorboard"]}, "says `none`, and names a tracker"),
        ({"report_to": 1}, "there is no tracker `1`"),
        ({"early_stopping_steps": 0.5}, "number of evaluations without improvement, at least 1, not 0.5"),
        ({"val_size": 0.1, "eval_dataset": "identity"}, "exclude each other"),
        ({"use_dft_loss": True, "use_eaft_loss": True}, "contradicts"),
        ({"template": "chatlm"}, "no such template"),
        ({"Learning_Rate": 1e-4}, "did you mean `learning_rate`"),
        ({"lora_rnk": None}, "did you mean `lora_rank`"),
        ({"optim_args": {"rnk": None}}, "optim_args.rnk: unknown key"),
        ({"train_dataset": "rows.jsonl"}, "another dialect"),
        ({"logging_steps": 0}, "whole number of steps"),
        ({"buffer_size": 0, "streaming": True}, "greater than 0"),
    ],
)
def test_an_odd_value_is_an_error_that_names_it(odd: dict[str, Any], why: str) -> None:
    with pytest.raises(RecipeError, match=why):
        load_recipe(KEYS | odd)


@pytest.mark.parametrize(
    ("keys", "command"),
    [
        ({"infer_backend": "huggingface", "template": "chatml"}, "gym chat"),
        ({"export_dir": "merged", "export_size": 5, "template": "chatml"}, "gym export"),
        ({"stage": "sft", "do_predict": True, "eval_dataset": "identity", "output_dir": "x"}, "gym predict"),
    ],
)
def test_a_file_that_trains_nothing_names_its_command(keys: dict[str, Any], command: str) -> None:
    with pytest.raises(RecipeError, match=f"names no rows to train on[^\n]*\n[^\n]*run `{command}` on it") as told:
        load_recipe({"model_name_or_path": "tiny", **keys})
    assert len(told.value.problems) == 1


def test_a_key_twice_is_an_error_that_names_both_lines(tmp_path: Path) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text(json.dumps(KEYS)[:-1] + ', "seed": 1, "seed": 2}')
    with pytest.raises(RecipeError, match="`seed` is given twice"):
        load_recipe(file)


def test_what_is_left_standing_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert load_recipe(KEYS | {"save_steps": 0}).train.save_every == KEEP_ALL
    assert load_recipe(KEYS | {"bf16": False, "pure_bf16": True}).train.precision == "bf16"
    plain = load_recipe(KEYS)
    assert load_recipe(KEYS | {"lora_rank": 8, "lora_target": "all"}).fingerprint() == plain.fingerprint()
    assert "lora_rank: says nothing beside `adapter: full`" in capsys.readouterr().err
    assert load_recipe(KEYS | {"buffer_size": 5, "plot_loss": False}).fingerprint() == plain.fingerprint()
    without = dict.fromkeys(translation.DIALECT.known() - KEYS.keys() - {"enable_thinking"})
    assert load_recipe(KEYS | without).fingerprint() == plain.fingerprint()


@pytest.mark.parametrize(
    ("row", "entry", "why"),
    [
        ({"instruction": "look <image>", "output": "a cat", "pictures": ["a.JPG"]}, {}, "it has pictures"),
        ({"conversations": [{"from": "human", "value": "<video>"}, {"from": "gpt", "value": "x"}], "vid": "a.mp4"},
         {"formatting": "sharegpt"}, "it has vid"),
        ({"instruction": "q", "output": "a"}, {"split": "test"}, "a file has no split"),
        ({"instruction": "q", "output": "a"}, {"num_samples": -3}, "greater than 0"),
    ],
)  # fmt: skip
def test_rows_that_are_more_than_text_and_entries_that_mean_nothing_are_refused(
    bench: Bench, row: dict[str, Any], entry: dict[str, Any], why: str
) -> None:
    bench.path("rows.json").write_text(json.dumps([row] * 2))
    bench.path("dataset_info.json").write_text(json.dumps({"odd": {"file_name": "rows.json", **entry}}))
    data = load_recipe(KEYS | {"dataset": "odd", "dataset_dir": str(bench.root)}).data
    assert data is not None
    with pytest.raises(DataError, match=why):
        data.build(tokenizer=bench.model(), rows="conversation", seed=0)

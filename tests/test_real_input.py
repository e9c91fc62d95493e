"""The same command line trains on real data, from a canonical recipe and from a LLaMA-Factory file."""

from __future__ import annotations

import json

import pytest

LLAMAFACTORY = """\
### model
model_name_or_path: tiny
trust_remote_code: true

### method
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all

### dataset
dataset: identity,alpaca_en_demo
dataset_dir: {data}
template: qwen3
cutoff_len: 512
max_samples: 40

### output
output_dir: saves/tiny
logging_steps: 1
save_steps: 3
plot_loss: true
overwrite_output_dir: true

### train
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
learning_rate: 1.0e-4
num_train_epochs: 1.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true

### eval
val_size: 0.1
eval_strategy: steps
eval_steps: 4
"""

CANONICAL = """\
model: tiny
data: {{sources: [identity, alpaca_en_demo], dataset_dir: {data}, cutoff: 512, max_samples: 40, validation: 0.1}}
algorithm: sft
adapter: {{name: lora, rank: 8}}
train: {{batch_size: 4, accumulate: 2, learning_rate: 1.0e-4, log_every: 1, save_every: 3, eval_every: 4}}
output: saves/tiny
export: [safetensors]
"""


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_llamafactory_file_runs_unchanged(gym, data, tmp_path):
    (tmp_path / "lf.yaml").write_text(LLAMAFACTORY.format(data=data))
    done = gym("train", "lf.yaml", "max_steps=8", "learning_rate=3e-3")
    assert done.returncode == 0, done.stderr
    output = tmp_path / "saves" / "tiny"
    for name in ("run.json", "metrics.jsonl", "loss.png", "README.md", "trainer_log.jsonl", "training_loss.png"):
        assert (output / name).stat().st_size > 0, name
    for name in ("all_results.json", "train_results.json"):
        assert json.loads((output / name).read_text())["train_loss"] > 0
    recipe = json.loads((output / "run.json").read_text())["recipe"]
    assert recipe["adapter"]["name"] == "lora" and recipe["train"]["accumulate"] == 2
    assert recipe["scheduler"] == {"name": "cosine"} and recipe["train"]["warmup"] == 0.1
    measured = lines(output / "metrics.jsonl")
    assert len([line for line in measured if "loss" in line]) == 8
    held_out = [line["eval_loss"] for line in measured if "eval_loss" in line]
    assert len(held_out) == 2 and held_out[1] < held_out[0]
    log = lines(output / "trainer_log.jsonl")
    assert {
        "current_steps",
        "total_steps",
        "loss",
        "lr",
        "epoch",
        "percentage",
        "elapsed_time",
        "remaining_time",
    } <= log[0].keys()


def test_canonical_recipe_trains_exports_and_loads_in_plain_transformers(gym, data, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (tmp_path / "r.yaml").write_text(CANONICAL.format(data=data))
    done = gym("train", "r.yaml", "train.max_steps=3", "--json")
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout[done.stdout.index("{") :])
    model = AutoModelForCausalLM.from_pretrained(tmp_path / outcome["exports"][0])
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / outcome["exports"][0])
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, return_tensors="pt"
    )
    ids = ids if isinstance(ids, torch.Tensor) else ids["input_ids"]
    assert torch.isfinite(model(input_ids=ids).logits).all()


@pytest.mark.parametrize("name", ["dpo_en_demo", "kto_en_demo"])
def test_rows_of_another_shape_are_refused(gym, data, tmp_path, name):
    (tmp_path / "r.yaml").write_text(
        f"model: tiny\nalgorithm: sft\ndata: {{sources: [{name}], dataset_dir: {data}, max_samples: 30}}\n"
    )
    done = gym("train", "r.yaml")
    assert done.returncode == 4 and "this algorithm learns from `conversation`" in done.stderr


@pytest.mark.parametrize("name", ["identity", "glaive_toolcall_en_demo", "c4_demo", "gsm8k_train"])
def test_preview_of_real_data(gym, data, tmp_path, name):
    algorithm = "pretrain" if name == "c4_demo" else "sft"
    (tmp_path / "r.yaml").write_text(
        f"model: tiny\nalgorithm: {algorithm}\ndata: {{sources: [{name}], dataset_dir: {data}, max_samples: 30}}\n"
    )
    done = gym("data", "preview", "r.yaml", "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout[done.stdout.index("{") :])
    assert shown["examples"], shown


def test_second_run_reuses_the_tokens(gym, data, tmp_path, cache):
    (tmp_path / "r.yaml").write_text(CANONICAL.format(data=data))
    assert gym("train", "r.yaml", "train.max_steps=1", "output=a", "export=[]").returncode == 0
    tokens = {path: path.stat().st_mtime_ns for path in (cache / "tokens").glob("**/*.npy")}
    assert gym("train", "r.yaml", "train.max_steps=1", "output=b", "export=[]").returncode == 0
    assert tokens and tokens == {path: path.stat().st_mtime_ns for path in (cache / "tokens").glob("**/*.npy")}

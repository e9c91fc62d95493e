"""Real pairs and labels train, from a canonical recipe and from LLaMA-Factory's example files with only the model changed."""

from __future__ import annotations

import json

import pytest

COMMON = """\
### model
model_name_or_path: tiny
trust_remote_code: true

### method
stage: {stage}
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
{method}
### dataset
dataset: {dataset}
template: qwen3_nothink
cutoff_len: 2048
max_samples: 1000
preprocessing_num_workers: 16
dataloader_num_workers: 4

### output
output_dir: saves/run
logging_steps: 10
save_steps: 500
plot_loss: true
overwrite_output_dir: true
save_only_model: false
report_to: none  # choices: [none, wandb, tensorboard, swanlab, mlflow]

### train
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: {rate}
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
resume_from_checkpoint: null

### eval
val_size: 0.1
per_device_eval_batch_size: 1
eval_strategy: steps
eval_steps: 500
"""
DPO = "pref_beta: 0.1\npref_loss: {loss}  # choices: [sigmoid (dpo), orpo, simpo]\n"
#: file: (stage, what it says of the method, dataset, learning rate, the algorithm it means)
FILES = {
    "dpo": ("dpo", DPO.format(loss="sigmoid"), "dpo_en_demo", "5.0e-6", "dpo"),
    "orpo": ("dpo", DPO.format(loss="orpo"), "dpo_en_demo", "5.0e-6", "orpo"),
    "simpo": ("dpo", DPO.format(loss="simpo"), "dpo_en_demo", "5.0e-6", "simpo"),
    "kto": ("kto", "pref_beta: 0.1\n", "kto_en_demo", "5.0e-6", "kto"),
    "reward": ("rm", "", "dpo_en_demo", "1.0e-4", "reward_model"),
}
CANONICAL = """\
model: tiny
data: {{sources: [{dataset}], dataset_dir: {data}, cutoff: 512, max_samples: 24}}
algorithm: {algorithm}
adapter: {{name: lora, rank: 8}}
train: {{max_steps: 6, batch_size: 8, learning_rate: 1.0e-3, warmup: 1, log_every: 1, shuffle: false}}
output: runs/first
"""


def metrics(path, key):
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [line[key] for line in lines if key in line]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ("simpo", "orpo"))) for name in FILES]
)
def test_llamafactory_file_runs_with_only_the_model_changed(gym, data, tmp_path, name):
    stage, method, dataset, rate, algorithm = FILES[name]
    text = COMMON.format(stage=stage, method=method, dataset=dataset, rate=rate)
    (tmp_path / "lf.yaml").write_text(text)
    short = ["max_samples=24", "cutoff_len=256", "max_steps=2", "logging_steps=1", "bf16=false"]
    done = gym("train", "lf.yaml", f"dataset_dir={data}", *short)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "saves" / "run"
    recipe = json.loads((run / "run.json").read_text())["recipe"]
    assert recipe["algorithm"]["name"] == algorithm and recipe["train"]["accumulate"] == 8
    assert len(metrics(run, "loss")) == 2
    assert json.loads((run / "all_results.json").read_text())["train_loss"] > 0


@pytest.mark.parametrize(("algorithm", "dataset"), [("dpo", "dpo_en_demo"), ("kto", "kto_en_demo")])
def test_canonical_recipe_learns_what_it_is_shown(gym, data, tmp_path, algorithm, dataset):
    (tmp_path / "r.yaml").write_text(CANONICAL.format(algorithm=algorithm, dataset=dataset, data=data))
    done = gym("train", "r.yaml")
    assert done.returncode == 0, done.stderr
    margins = metrics(tmp_path / "runs" / "first", "rewards/margins")
    assert margins[0] == 0 and margins[-1] > 0.1, margins

"""Recipes that users have from elsewhere: GRPO in LLaMA-Factory's dialect, GSPO in the short form."""

from __future__ import annotations

import json
import shutil

from transformers import AutoConfig

from gym_data.location import locate
from gym_torch.model.scalar_head import ScalarHead

GRPO = """\
model_name_or_path: tiny
stage: grpo
do_train: true
reward_model: {reward}
learning_rate: 1.0e-6
num_train_epochs: 2
per_device_train_batch_size: 1
gradient_accumulation_steps: 16
"""

GSPO = """\
model: tiny
algorithm: gspo
group_size: 8
sequence_parallel: true
use_unsloth: true
quantization:
  method: bitdelta
  bits: 1
  enable_deltasoup: true
"""

PROMPTS = "{sources: [{name: tiny-tasks, task: arithmetic, count: 8}], cutoff: 256}"


def test_grpo_trains_on_what_a_reward_model_says(gym, tmp_path):
    reward = shutil.copytree(locate("tiny"), tmp_path / "reward")
    ScalarHead(AutoConfig.from_pretrained(reward).hidden_size).save(reward)
    (tmp_path / "grpo.yaml").write_text(GRPO.format(reward="reward"))
    done = gym("train", "grpo.yaml", f"data={PROMPTS}", "max_new_tokens=4", "max_steps=2", "output=runs/grpo")
    assert done.returncode == 0, done.stderr
    recipe = json.loads((tmp_path / "runs/grpo/run.json").read_text())["recipe"]
    assert recipe["algorithm"]["name"] == "grpo"
    assert recipe["algorithm"]["rewards"] == [{"name": "model", "path": "reward"}]


def test_gspo_names_what_is_missing_and_trains_without(gym, tmp_path):
    (tmp_path / "gspo.yaml").write_text(GSPO)
    done = gym("validate", "gspo.yaml")
    assert done.returncode != 0
    for said in ("rewards: is required", "sequence_parallel", "use_unsloth"):
        assert said in done.stderr, done.stderr
    kept = [line for line in GSPO.splitlines(keepends=True) if "sequence" not in line and "unsloth" not in line]
    (tmp_path / "gspo.yaml").write_text("".join(kept))
    options = [f"data={PROMPTS}", "rewards=[exact]", "max_new_tokens=4", "output=runs/gspo"]
    options.append("quantization.distill_steps=2")
    done = gym("train", "gspo.yaml", *options, "train.max_steps=4", "train.batch_size=8")
    assert done.returncode == 0, done.stderr
    recipe = json.loads((tmp_path / "runs/gspo/run.json").read_text())["recipe"]
    assert recipe["algorithm"] | {"name": "gspo", "group_size": 8} == recipe["algorithm"]
    assert json.loads((tmp_path / "runs/gspo/run.json").read_text())["artifact"]["kind"] == "delta"
    assert (tmp_path / "runs/gspo/quantized/delta.safetensors").is_file()

"""Files as people write them, each with the recipe that it means."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gym_core import GymError, load_recipe
from gym_core.discovery import installed

INSTRUCT = {"name": "axolotl_instruct"}
CHAT = {"name": "messages", "messages": "messages", "system": "system"}
EVERY = {"scheduler": "cosine", "optimizer": "adamw", "output": "./model-out"}
TRAIN = {"seed": 42, "keep_last": 4, "precision": "auto", "save_every": 1_000_000, "batch_size": 1}
DATA = {"overlong": "drop", "bad_rows": "skip", "whole_epochs": True, "cutoff": 512}


def recipe(file: str) -> dict[str, Any]:
    """Return the sections that a file means, with every option that is set."""
    return load_recipe(yaml.safe_load(file)).canonical()


def means(train: dict[str, Any], data: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """Return a recipe of Gym with what every file of axolotl means."""
    whole = {
        **EVERY,
        "model": "tiny",
        "algorithm": "sft",
        **sections,
        "train": {**TRAIN, **train},
        "data": {**DATA, **data},
    }
    for options in (whole["train"], whole["data"]):
        for name in [name for name, value in options.items() if value is None]:
            del options[name]
    return load_recipe(whole).canonical()


def test_lora_with_packing_counts_tokens() -> None:
    file = """
base_model: tiny
load_in_8bit: false
datasets: [{path: rows.jsonl, type: alpaca}]
dataset_prepared_path: last_run_prepared
val_set_size: 0.1
output_dir: ./outputs/lora-out
adapter: lora
sequence_len: 2048
sample_packing: true
eval_sample_packing: true
lora_r: 16
lora_alpha: 32
lora_dropout: 0.05
lora_target_linear: true
wandb_project:
gradient_accumulation_steps: 2
micro_batch_size: 4
num_epochs: 2
optimizer: adamw_8bit
lr_scheduler: cosine
learning_rate: 2e-4
bf16: auto
tf32: false
gradient_checkpointing: true
attn_implementation: sdpa
warmup_ratio: 0.1
evals_per_epoch: 4
saves_per_epoch: 1
weight_decay: 0.0
special_tokens:
  pad_token: "<|end_of_text|>"
"""
    source = {"name": "named", "path": "rows.jsonl", "read_as": INSTRUCT}
    told = means(
        {"epochs": 2, "batch_size": None, "batch_tokens": 4 * 2048, "accumulate": 2, "learning_rate": 2e-4, "warmup": 0.1,
         "gradient_checkpointing": True, "eval_every": 0.125, "eval_on_start": True, "save_every": 0.5},
        {"sources": [source], "template": "alpaca", "validation": 0.1, "cutoff": 2048, "split_special_tokens": False,
         "whole_epochs": None},
        adapter={"name": "lora", "rank": 16, "alpha": 32, "dropout": 0.05, "target_modules": "all"},
        optimizer={"name": "adamw_8bit", "weight_decay": 0}, output="./outputs/lora-out",
    )  # fmt: skip
    assert recipe(file) == told


def test_qlora_on_conversations() -> None:
    file = """
base_model: tiny
load_in_4bit: true
adapter: qlora
chat_template: chatml
datasets:
  - path: mlabonne/FineTome-100k
    type: chat_template
    split: train[:20%]
    field_messages: conversations
    message_property_mappings: {role: from, content: value}
    roles: {user: [human], assistant: [gpt, model]}
lora_r: 32
lora_alpha: 16
lora_target_modules: [q_proj, down_proj]
sequence_len: 1024
micro_batch_size: 2
learning_rate: 0.0002
warmup_steps: 10
bf16: true
optimizer: adamw_torch_4bit
logging_steps: 1
lr_scheduler: linear
"""
    reading = {
        "name": "messages",
        "messages": "conversations",
        "system": "system",
        "role": "from",
        "content": "value",
        "assistant": "model",
    }
    source = {"name": "hub", "path": "mlabonne/FineTome-100k", "split": "train[:20%]", "read_as": reading}
    told = means(
        {"batch_size": 2, "learning_rate": 2e-4, "warmup": 10, "precision": "bf16", "log_every": 1},
        {"sources": [source], "template": "chatml", "cutoff": 1024},
        model={"path": "tiny", "quantization": {"name": "bnb_4bit", "quant_type": "nf4", "double_quant": True}},
        adapter={"name": "lora", "rank": 32, "alpha": 16, "target_modules": ["q_proj", "down_proj"]},
        optimizer="adamw_8bit", scheduler="linear",
    )  # fmt: skip
    assert recipe(file) == told


def test_full_training_over_processes() -> None:
    file = """
base_model: tiny
datasets: [{path: rows.jsonl, type: chat_template}]
num_epochs: 3
micro_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1e-5
weight_decay: 0.1
warmup_ratio: 0
adam_beta2: 0.95
save_strategy: "no"
fsdp: [full_shard, auto_wrap]
fsdp_config: {fsdp_offload_params: true}
plugins: [axolotl.integrations.liger.LigerPlugin]
liger_fused_linear_cross_entropy: true
"""
    told = means(
        {"epochs": 3, "accumulate": 8, "learning_rate": 1e-5},
        {"sources": [{"name": "named", "path": "rows.jsonl", "read_as": CHAT}]},
        adapter="full", optimizer={"name": "adamw", "weight_decay": 0.1, "beta2": 0.95}, distributed="fsdp",
    )  # fmt: skip
    assert recipe(file) == told


@pytest.mark.parametrize(
    ("keys", "algorithm"),
    [
        ("rl: dpo\ndpo_label_smoothing: 0.1", {"name": "cdpo", "label_smoothing": 0.1}),
        ("rl: dpo\ntrl: {beta: 0.3}\nrpo_alpha: 0.5", {"name": "dpo", "beta": 0.3, "ftx": 0.5}),
        ("rl: dpo\ndpo_loss_type: [hinge]", "hinge"),
        ("rl: ipo\nrl_beta: 0.2", {"name": "ipo", "beta": 0.2}),
        ("rl: orpo\norpo_alpha: 0.2", {"name": "orpo", "beta": 0.2}),
        ("rl: simpo\ncpo_alpha: 0", {"name": "simpo", "beta": 0.1, "ftx": 0.0, "simpo_gamma": 0.5}),
    ],
)
def test_pairs(keys: str, algorithm: Any) -> None:
    file = f"""
base_model: tiny
chat_template: llama3
{keys}
datasets:
  - {{path: pairs.jsonl, type: chat_template.default, field_messages: conversation, field_rejected: worse}}
max_steps: 1000
sample_packing: false
learning_rate: 5e-6
"""
    prompt = {"name": "messages", "messages": "conversation"}
    reading = {"name": "preference", "chosen": "chosen", "rejected": "worse", "prompt": prompt}
    told = means(
        {"max_steps": 1000, "learning_rate": 5e-6, "warmup": 30, "log_every": 5},
        {"sources": [{"name": "named", "path": "pairs.jsonl", "read_as": reading}], "template": "llama3"},
        adapter="full", algorithm=algorithm,
    )  # fmt: skip
    assert recipe(file) == told


def test_judged_answers() -> None:
    file = """
base_model: tiny
rl: kto
rl_beta: 0.5
kto_desirable_weight: 0.2
datasets: [{path: judged.jsonl, type: llama3.ultra, split: train}]
val_set_size: 0.0
num_epochs: 1
learning_rate: 2e-4
warmup_ratio: 0.1
sample_packing: false
remove_unused_columns: false
"""
    asked = {"name": "alpaca", "prompt": "prompt", "query": None, "response": "completion", "system": "system"}
    reading = {"name": "feedback", "conversation": asked}
    told = means(
        {"epochs": 1, "learning_rate": 2e-4, "warmup": 0.1},
        {"sources": [{"name": "hub", "path": "judged.jsonl", "split": "train", "read_as": reading}], "template": "llama3",
         "validation": 0.0},
        adapter="full", algorithm={"name": "kto", "beta": 0.5, "desirable_weight": 0.2},
    )  # fmt: skip
    assert recipe(file) == told


def test_reward_models() -> None:
    pairs = """
base_model: tiny
model_type: AutoModelForSequenceClassification
num_labels: 1
reward_model: true
center_rewards_coefficient: 0.01
datasets: [{path: pairs.jsonl, type: bradley_terry.chat_template}]
learning_rate: 2e-4
warmup_ratio: 0.1
"""
    asked = {"name": "alpaca", "prompt": "input", "query": None, "response": None, "system": "system"}
    reading = {"name": "preference", "chosen": "chosen", "rejected": "rejected", "prompt": asked}
    told = means(
        {"learning_rate": 2e-4, "warmup": 0.1},
        {"sources": [{"name": "named", "path": "pairs.jsonl", "read_as": reading}]},
        adapter="full", algorithm={"name": "reward_model", "center_rewards_coefficient": 0.01},
    )  # fmt: skip
    assert recipe(pairs) == told
    steps = pairs.replace("reward_model", "process_reward_model").replace("center_rewards_coefficient: 0.01\n", "")
    steps = steps.replace("type: bradley_terry.chat_template", 'type: stepwise_supervised, step_separator: "."')
    reading = {"name": "stepwise", "separator": "."}
    told = means(
        {"learning_rate": 2e-4, "warmup": 0.1},
        {"sources": [{"name": "named", "path": "pairs.jsonl", "read_as": reading}]},
        adapter="full", algorithm="process_reward_model",
    )  # fmt: skip
    assert recipe(steps) == told


def test_text_is_streamed() -> None:
    file = """
base_model: tiny
reinit_weights: true
pretraining_dataset: [{path: HuggingFaceFW/fineweb-edu, name: sample-10BT, type: pretrain, split: train}]
streaming_multipack_buffer_size: 500
max_steps: 1000
sequence_len: 1024
sample_packing: true
micro_batch_size: 8
learning_rate: 5e-4
warmup_ratio: 0.1
save_steps: 250
save_total_limit: 3
logging_steps: 10
"""
    source = {"name": "hub", "path": "HuggingFaceFW/fineweb-edu", "subset": "sample-10BT", "split": "train"}
    source["read_as"] = {"name": "text", "text": "text"}  # type: ignore[assignment]
    told = means(
        {"max_steps": 1000, "learning_rate": 5e-4, "warmup": 0.1, "save_every": 250, "keep_last": 3, "log_every": 10,
         "batch_size": None, "batch_tokens": 8192},
        {"sources": [source], "cutoff": 1024, "streaming": True, "buffer_size": 500, "split_special_tokens": False,
         "whole_epochs": None},
        model={"path": "tiny", "init": "random"}, adapter="full", algorithm="pretrain",
    )  # fmt: skip
    assert recipe(file) == told


def test_rewards() -> None:
    file = """
base_model: tiny
rl: grpo
trl:
  num_generations: 4
  max_completion_length: 128
  temperature: 0.7
  reward_funcs: [rewards.first, rewards.second]
  reward_weights: [1.0, 2.0]
  use_vllm: false
  loss_type: grpo
datasets: [{path: prompts.jsonl}]
micro_batch_size: 8
max_steps: 100
learning_rate: 5e-5
warmup_steps: 0
"""
    functions = [
        {"name": "python", "function": f"rewards.py:{name}", "conversational": True, "weight": weight}
        for name, weight in (("first", 1.0), ("second", 2.0))
    ]
    told = means(
        {"max_steps": 100, "learning_rate": 5e-5, "batch_size": 8, "log_every": 1},
        {"sources": [{"name": "named", "path": "prompts.jsonl"}]},
        adapter="full",
        algorithm={"name": "grpo", "rewards": functions, "group_size": 4, "max_new_tokens": 128, "temperature": 0.7,
                   "loss_agg_mode": "seq-mean-token-mean"},
    )  # fmt: skip
    assert recipe(file) == told


def test_the_family_of_lora() -> None:
    base: dict[str, Any] = {"base_model": "tiny", "datasets": "rows.jsonl", "learning_rate": 1e-4, "adapter": "lora"}
    base["datasets"] = [{"path": "rows.jsonl", "type": "alpaca"}]
    for keys, name in (
        ({"peft_use_dora": True}, "dora"),
        ({"peft_use_rslora": True}, "rslora"),
        ({"peft": {"loftq_config": {"loftq_bits": 4}}}, "loftq"),
        ({"peft_init_lora_weights": "pissa"}, "pissa"),
        ({"peft_init_lora_weights": True}, "lora"),
        ({"lora_target_parameters": ["experts.down_proj"], "lora_dropout": 0}, "expert_lora"),
    ):
        assert load_recipe({**base, **keys}).canonical()["adapter"]["name"] == name
    plain = load_recipe(base).canonical()["adapter"]
    assert plain["target_modules"] == ["q_proj", "v_proj"] or plain["target_modules"] == ("q_proj", "v_proj")
    told = load_recipe(
        {**base, "lora_target_modules": r"model.language_model.layers.[\d]+.(mlp|self_attn).(up|q)_proj"}
    )
    assert list(told.canonical()["adapter"]["target_modules"]) == ["up_proj", "q_proj"]
    own = load_recipe(base, ["adapter.rank=3"]).canonical()["adapter"]  # an option under its own name
    assert (
        own["rank"] == 3
        and load_recipe({**base, "adapter": {"name": "dora", "rank": 4}}).canonical()["adapter"]["rank"] == 4
    )
    assert load_recipe({**base, "adapter": None, "lora_r": 8}).canonical()["adapter"]["name"] == "full"


@pytest.mark.parametrize(
    ("keys", "means_"),
    [
        ({"optimizer": "adamw_torch"}, {"name": "adamw"}),
        ({"optimizer": "optimi_adamw"}, {"name": "adamw", "beta2": 0.99, "epsilon": 1e-6}),
        ({"optimizer": "optimi_adamw", "adam_epsilon": 1e-9}, {"name": "adamw", "beta2": 0.99, "epsilon": 1e-9}),
        ({"optimizer": "lion_32bit"}, {"name": "lion", "beta2": 0.999}),
        ({"optimizer": "lion_32bit", "adam_beta2": 0.98}, {"name": "lion", "beta2": 0.98}),
        ({"optimizer": "muon"}, {"name": "muon", "beta1": 0.95, "weight_decay": 0}),
        (
            {"optimizer": "galore_adamw", "optim_target_modules": "all_linear"},
            {"name": "galore", "epsilon": 1e-6, "target_modules": "all"},
        ),
        ({"optimizer": "apollo_adamw"}, {"name": "apollo", "rank": 128, "epsilon": 1e-8}),
        ({"optimizer": "apollo_adamw", "optim_args": "rank=64"}, {"name": "apollo", "rank": 64, "epsilon": 1e-8}),
    ],
)
def test_what_an_optimizer_means_that_says_no_more(keys: dict[str, Any], means_: dict[str, Any]) -> None:
    base = {"base_model": "tiny", "datasets": [{"path": "a", "type": "alpaca"}], "learning_rate": 1e-4}
    told = load_recipe({**base, **keys}).canonical()["optimizer"]
    whole = {"model": "tiny", "data": "a", "algorithm": "sft", "output": "o", "optimizer": means_}
    assert told == load_recipe(whole).canonical()["optimizer"]


@pytest.mark.parametrize(
    ("name", "more", "means_"),
    [
        ("cosine", {"num_cycles": 0.5}, {"name": "cosine"}),
        ("cosine_with_restarts", {"num_cycles": 3}, {"name": "cosine", "num_cycles": 3}),
        ("cosine_with_min_lr", {"min_lr": 1e-5}, {"name": "cosine", "min_lr_ratio": 0.1}),
        ("cosine_with_min_lr", {"min_lr_rate": 0.2}, {"name": "cosine", "min_lr_ratio": 0.2}),
        ("polynomial", {"power": 2}, {"name": "polynomial", "power": 2, "min_lr_ratio": 1e-7 / 1e-4}),
        ("inverse_sqrt", {"timescale": 7}, {"name": "inverse_sqrt", "timescale": 7}),
    ],
)
def test_how_the_rate_falls(name: str, more: dict[str, Any], means_: dict[str, Any]) -> None:
    base = {"base_model": "tiny", "datasets": [{"path": "a", "type": "alpaca"}], "learning_rate": 1e-4}
    told = load_recipe({**base, "lr_scheduler": name, "lr_scheduler_kwargs": more}).canonical()["scheduler"]
    whole = {"model": "tiny", "data": "a", "algorithm": "sft", "output": "o", "scheduler": means_}
    assert told == load_recipe(whole).canonical()["scheduler"]


@pytest.mark.parametrize(
    ("keys", "key", "why"),
    [
        ({"lr_scheduler_kwargs": {"num_cycles": 1}}, "lr_scheduler_kwargs.num_cycles", "only `0.5` is done here"),
        (
            {"lr_scheduler": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 9}},
            "lr_scheduler_kwargs.num_decay_steps",
            "decay_ratio",
        ),
        ({"datasets": [{"path": "a", "type": "nobody"}]}, "datasets[0].type", "there is no `nobody` here"),
        ({"datasets": [{"path": "a"}]}, "datasets[0].type", "tokens already"),
        ({"datasets": [{"path": "s3://a", "type": "alpaca"}]}, "datasets[0].path", "not read from the network"),
        ({"datasets": [{"path": "a", "type": "alpaca", "shards": 2}]}, "datasets[0].shards", "by its number"),
        ({"datasets": [{"path": "a", "type": "alpaca", "oddity": 2}]}, "datasets[0].oddity", "no key of a dataset"),
        (
            {"datasets": [{"path": "a", "type": "chat_template", "train_on_eos": "all"}]},
            "datasets[0].train_on_eos",
            "with the token that ends it",
        ),
        (
            {"datasets": [{"path": "a", "type": "completion"}, {"path": "b", "type": "alpaca"}]},
            "datasets[0].type",
            "text is learnt by itself",
        ),
        *(
            ({"datasets": [{"path": "a", "type": "chat_template", key: value}]}, f"datasets[0].{key}", why)
            for key, value, why in (
                ("data_files", True, "a list of names, not `True`"),
                ("roles", {"user": 1}, "a list of names, not `1`"),
                ("roles_to_train", [], "answers are learnt"),
                ("roles_to_train", [["user"]], "a list of names"),
                ("message_property_mappings", ["role"], "write a mapping"),
                ("roles", "user", "what they mean, not `user`"),
            )
        ),
        ({"chat_template": "nobody"}, "chat_template", "there is no `nobody`"),
        ({"chat_template": ["chatml"]}, "chat_template", "there is no `['chatml']`"),
        (
            {"adapter": "lora", "lora_target_linear": True, "lora_target_modules": ["q_proj", "lm_head"]},
            "lora_target_modules",
            "`lm_head` is no layer",
        ),
        ({"adapter": "lora", "lora_target_modules": {"q_proj": 8}}, "lora_target_modules", "a list of names"),
        ({"rl": "dpo", "datasets": [{"path": "a"}]}, "datasets[0].type", "takes texts as they are"),
        ({"rl": "kto", "datasets": [{"path": "a", "type": None}]}, "datasets[0].type", "takes texts as they are"),
        ({"adapter": ["lora"]}, "adapter", "no installed plugin brings `['lora']`"),
        ({"optimizer": ["adamw_torch"]}, "optimizer", "no installed plugin brings `['adamw_torch']`"),
        ({"dp_shard_size": [2]}, "dp_shard_size", "int() argument"),
        ({"trl": {"vllm_mode": "colocate"}}, "trl.vllm_mode", "belongs to algorithm"),
        ({"optimizer": "came_pytorch"}, "optimizer", "set optimizer: adamw_torch_fused"),
        ({"optimizer": "nothing"}, "optimizer", "no installed plugin"),
        ({"rl": "ebft"}, "rl", "only axolotl"),
        ({"qat": {"weight_dtype": "int4"}}, "qat", "not rounded"),
        ({"plugins": ["axolotl.integrations.spectrum.SpectrumPlugin"]}, "plugins", "freeze"),
        ({"sequence_length": 4}, "sequence_length", "unknown key"),
        ({"special_tokens": {"pad": "a"}}, "special_tokens.pad", "unknown key"),
        ({"rl": "grpo", "datasets": [{"path": "a", "type": "mine.transform"}]}, "datasets[0].type", "not run"),
    ],
)
def test_what_is_not_here_is_refused_by_name(keys: dict[str, Any], key: str, why: str) -> None:
    base = {"base_model": "tiny", "datasets": [{"path": "a", "type": "alpaca"}], "learning_rate": 1e-4}
    with pytest.raises(GymError) as caught:
        load_recipe({**base, **keys})
    assert any(problem.key == key and why in f"{problem.why} {problem.fix}" for problem in caught.value.problems)


def test_parts_of_the_model_and_its_experts() -> None:
    base = {"base_model": "tiny", "datasets": [{"path": "a", "type": "alpaca"}], "learning_rate": 1e-4}
    whole = load_recipe({**base, "unfrozen_parameters": ["^model.language_model.*", "^lm_head.*"]})
    assert whole.fingerprint() == load_recipe(base).fingerprint(), "the language model trains anyway"
    with pytest.raises(GymError, match="freeze"):
        load_recipe({**base, "unfrozen_parameters": ["^lm_head.*", "model.layers.4[4-9]+.block_sparse_moe.gate"]})
    for told, coefficient in (({}, "own"), ({"router_aux_loss_coef": 0.02}, 0.02)):
        experts = load_recipe({**base, "model_config": {"output_router_logits": True, **told}})
        assert experts.canonical()["model"]["router_aux_loss_coef"] == coefficient
    files = [{"path": "a/b", "type": "completion", "field": "chapter", "data_files": ["x.jsonl.zst"]}]
    (source,) = load_recipe({**base, "datasets": files}).canonical()["data"]["sources"]
    assert source["files"] == ["x.jsonl.zst"] and source["read_as"] == {"name": "text", "text": "chapter"}


def test_trackers_and_early_stopping() -> None:
    base = {"base_model": "tiny", "datasets": [{"path": "a", "type": "alpaca"}], "learning_rate": 1e-4}
    found = load_recipe(
        {**base, "use_tensorboard": True, "early_stopping_patience": 3, "val_set_size": 0.1, "eval_steps": 5}
    )
    assert [item["name"] for item in found.canonical()["callbacks"]] == ["early_stopping", "tensorboard"]
    assert found.train.load_best_model_at_end and found.train.eval_every == 5
    assert (
        "callbacks"
        not in load_recipe({**base, "wandb_name": "a", "wandb_project": None, "use_wandb": False}).canonical()
    )
    assert ("dialects", "base_model") in installed().named


def test_the_readme_shows_a_file_and_the_recipe_that_it_means() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    theirs, ours = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL))
    assert load_recipe(theirs).fingerprint() == load_recipe(ours).fingerprint()
    assert round(load_recipe(theirs).canonical()["train"].pop("save_every"), 4) == ours["train"]["save_every"]

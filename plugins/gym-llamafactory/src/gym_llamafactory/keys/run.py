"""How long and how is trained, on which processes, and what is written."""

from __future__ import annotations

from gym_llamafactory.keys.convert import NOT, number, positive
from gym_llamafactory.table import Key, Keys


class RunKeys(Keys):
    """Keys of the loop, of processes and of what is written."""

    keys = (
        Key("num_train_epochs", "train.epochs", default=3.0),
        Key("max_steps", "train.max_steps", convert=positive),
        Key("per_device_train_batch_size", "train.batch_size", default=8),
        Key("gradient_accumulation_steps", "train.accumulate"),
        Key("learning_rate", "train.learning_rate", convert=float),
        Key("warmup_ratio", "train.warmup", convert=number),
        Key("warmup_steps", "train.warmup", convert=number),
        Key("max_grad_norm", "train.max_grad_norm"),
        Key("bf16", "train.precision", convert={True: "bf16", False: None}),
        Key("pure_bf16", "train.precision", convert={False: None}),
        Key("gradient_checkpointing", "train.gradient_checkpointing"),
        Key("disable_gradient_checkpointing", "train.gradient_checkpointing", convert=NOT),
        Key("seed", "train.seed", default=42),
        Key("disable_shuffling", "train.shuffle", convert=NOT),
        Key("logging_steps", "train.log_every", default=500),
        Key("eval_steps", "train.eval_every"),
        Key("save_steps", "train.save_every", default=500),
        Key("save_total_limit", "train.keep_last"),
        Key("load_best_model_at_end", "train.load_best_model_at_end"),
        Key("plot_loss", "train.plot"),
        Key("overwrite_output_dir", "train.overwrite"),
        Key("ddp_timeout", "distributed.timeout", "ddp fsdp", float),
        Key("export_size", "export.shard_gigabytes", "safetensors"),
    )

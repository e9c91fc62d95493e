"""What the keys of the second version are called in the first, and what they mean by being left out."""

from __future__ import annotations

from typing import Any

from gym_dialect.stated import OFF, Stated, refused, unread
from gym_llamafactory.keys.run import KEEP_ALL

ALIKE = frozenset(
    ("output_dir", "cutoff_len", "learning_rate", "num_train_epochs", "max_steps", "max_grad_norm", "bf16", "save_steps",
     "save_total_limit", "logging_steps", "pref_loss", "pref_beta", "pref_ftx", "simpo_gamma", "dpo_label_smoothing", "ld_alpha",
     "seed", "trust_remote_code")
)  # fmt: skip
"""Keys of the same name and meaning."""
RENAMED = {
    "model": "model_name_or_path",
    "micro_batch_size": "per_device_train_batch_size",
    "enable_activation_checkpointing": "gradient_checkpointing",
    "dist_timeout": "ddp_timeout",
}
DEFAULTS: dict[str, Any] = {
    "micro_batch_size": 1,
    "learning_rate": 1e-4,
    "bf16": True,
    "enable_activation_checkpointing": True,
    "logging_steps": 1,
    "save_steps": KEEP_ALL,  # no checkpoint before the end
    "cutoff_len": 2048,
}
FIXED: dict[str, Any] = {"lr_scheduler_type": "constant", "optim": "adamw_torch", "weight_decay": 0.01}
"""What no key says, but a section for a plugin of its own."""
OF_ADAMW = ("optim", "weight_decay")
ATTENTION = {"eager": "disabled", "sdpa": "sdpa", "flash_attention_2": "fa2", "flash_attention_3": "fa3"}
PREFERENCE = frozenset(("pref_loss", "pref_beta", "pref_ftx", "simpo_gamma", "dpo_label_smoothing", "ld_alpha"))

LORA = {
    "r": ("lora_rank", 8),
    "lora_alpha": ("lora_alpha", 16),
    "lora_dropout": ("lora_dropout", 0.05),
    "target_modules": ("lora_target", "all"),
    "modules_to_save": ("additional_target", None),
    "adapter_name_or_path": ("adapter_name_or_path", None),
    "use_rslora": ("use_rslora", None),
    "use_dora": ("use_dora", None),
}
FREEZE = {
    "freeze_trainable_layers": ("freeze_trainable_layers", 2),
    "freeze_trainable_modules": ("freeze_trainable_modules", "all"),
    "freeze_extra_modules": ("freeze_extra_modules", None),
    "cast_trainable_params_to_fp32": ("", True),  # they are fp32 here
}
QUANTIZATION = {
    "quantization_bit": ("quantization_bit", 4),
    "quantization_type": ("quantization_type", "nf4"),
    "double_quantization": ("double_quantization", True),
    "compute_dtype": ("", None),  # it is that of the run
}
MUON = {
    "wd": ("weight_decay", 0.1),
    "momentum": ("momentum", 0.95),
    "nesterov": ("nesterov", True),
    "adamw_eps": ("epsilon", 1e-8),
}
"""Options of the optimizer `muon`, which `adamw_betas` fills too."""

STATED: dict[str, Stated] = {
    **unread("how the same is computed", ("batching_workers", "init_config", "cp_mode")),
    **unread("answers are written by `gym inference`", ("sample_backend", "max_new_tokens")),
    **unread("the processes are those of `gym train --nproc`", ("dp_size", "mp_replicate_size", "mp_shard_size")),
    **unread("checkpoints hold all that a run needs to go on", ("save_ckpt_as_hf",)),
    **refused(
        (None,),
        "names a plugin, and LLaMA-Factory brings none for it either",
        "leave it out for a constant rate, or add a section: `scheduler: cosine`, with `train: {warmup: 0.1}`",
        ("lr_scheduler_config",),
    ),
    "model_class": Stated(
        ("llm",), "is of models with another head", "leave it out, or train a reward model: algorithm=reward_model"
    ),
    "full_determinism": Stated(OFF, "is no option", "leave it out: a run on a CPU repeats bit for bit"),
    "resume_from_checkpoint": Stated((None, "auto"), "a run goes on from its own last checkpoint", "leave it out"),
}

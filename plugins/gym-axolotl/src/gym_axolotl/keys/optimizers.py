"""The optimizer, and how the learning rate falls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gym_axolotl.table import Keys
from gym_dialect import Choice, Key, schedules
from gym_dialect.convert import note, only

_EPSILON = "adamw_8bit paged_adamw_8bit lisa lora_plus q_galore schedule_free_adamw"
_AS_ADAM = f"{_EPSILON} apollo galore"
_NARROWER = "loraplus_lr_ratio lisa_n_layers"
_NAMES = {
    "adamw": "adamw_torch adamw_torch_fused adamw_hf adamw_apex_fused optimi_adamw paged_adamw_32bit",
    "adamw_8bit": "adamw_8bit adamw_bnb_8bit adamw_torch_8bit ao_adamw_8bit adamw_torch_4bit ao_adamw_4bit",
    "paged_adamw_8bit": "paged_adamw_8bit",
    "adafactor": "adafactor",
    "apollo": "apollo_adamw",
    "galore": "galore_adamw",
    "lion": "lion lion_32bit lion_pytorch",
    "muon": "muon",
    "q_galore": "q_galore_adamw8bit",
    "schedule_free_adamw": "schedule_free_adamw",
    "sgd": "sgd",
}
_INSTEAD = {
    "optimizer: adamw_torch_fused": "flash_adamw flash_adam adopt_adamw ao_adamw_fp8 came_pytorch adamw_anyprecision rmsprop "
    "rmsprop_bnb ademamix stable_adamw grokadamw dion sinkgd",
    "optimizer: sgd": "flash_sgd flash_sgdw",
    "optimizer: lion_32bit": "flash_lion lion_8bit paged_lion_8bit paged_lion_32bit",
    "optimizer: adafactor": "adagrad",
    "optimizer: adamw_8bit": "ademamix_8bit rmsprop_bnb_8bit",
}
_NOTES = {
    "adamw_torch_4bit": "moments are kept in 8 bits, which is more exact and needs more memory",
    "ao_adamw_4bit": "moments are kept in 8 bits, which is more exact and needs more memory",
    "paged_adamw_32bit": "moments stay where the model is",
}


def optimizer(name: Any) -> str:
    """Return the name of an optimizer, and tell the user where it is another one here."""
    if str(name) in _NOTES:
        note(f"optimizer: {name}: {_NOTES[name]}")
    return str(name).lower()


def projected(modules: Any) -> Any:
    """Return the matrices that are projected; `all_linear` means all."""
    return "all" if modules in ("all_linear", "all-linear") else modules


def least(share: Any, lr_scheduler: Any = None) -> float | None:
    """Return the share of the peak that is left at the end."""
    return float(share) or None


def optimi(usual: float) -> Callable[..., float | None]:
    """Return a conversion of a key of AdamW; left out, it is `usual` for the AdamW of torch-optimi alone."""

    def told(value: Any, optimizer: Any = None) -> float | None:
        return float(value) if value != "" else usual if optimizer == "optimi_adamw" else None

    return told


class OptimizerKeys(Keys):
    """Keys of the optimizer and of the schedule."""

    choices = (
        Choice(
            "optimizer",
            "optimizer",
            {name: ours for ours, names in _NAMES.items() for name in names.split()},
            default="adamw",
            yields={name: _NARROWER for ours in ("adamw", "adamw_8bit") for name in _NAMES[ours].split()},
            refused={name: instead for instead, names in _INSTEAD.items() for name in names.split()},
            read=optimizer,
        ),
        Choice("loraplus_lr_ratio", "optimizer", {"*": "lora_plus"}),
        Choice("lisa_n_layers", "optimizer", {"*": "lisa"}),
        Choice(
            "lr_scheduler",
            "scheduler",
            schedules.NAMES,
            default="cosine",
            refused={
                "one_cycle": "lr_scheduler: cosine",
                "rex": "lr_scheduler: cosine",
                "log_sweep": "lr_scheduler: cosine",
            },
        ),
    )
    keys = (
        # What is left out means what transformers, or the package that an optimizer comes from, sets.
        Key("adam_beta1", "optimizer.beta1", f"adamw {_AS_ADAM} lion", float),
        Key("adam_beta1", "optimizer.beta1", "muon", float, 0.95),
        Key("adam_beta2", "optimizer.beta2", "adamw", optimi(0.99), "", together="optimizer"),
        Key("adam_beta2", "optimizer.beta2", f"{_AS_ADAM} muon", float),
        Key("adam_beta2", "optimizer.beta2", "lion", float, 0.999),
        Key("adam_epsilon", "optimizer.epsilon", "adamw", optimi(1e-6), "", together="optimizer"),
        Key("adam_epsilon", "optimizer.epsilon", f"{_EPSILON} muon", float),
        Key("adam_epsilon", "optimizer.epsilon", "galore", float, 1e-6),
        Key("adam_epsilon", "optimizer.epsilon", "apollo", float, 1e-8),
        Key("weight_decay", "optimizer.weight_decay", f"adamw {_AS_ADAM} lion adafactor sgd", float),
        Key("weight_decay", "optimizer.weight_decay", "muon", float, 0.0),
        Key("loraplus_lr_ratio", "optimizer.lr_ratio", "lora_plus", float),
        Key("loraplus_lr_embedding", "optimizer.lr_embedding", "lora_plus", float),
        Key("lisa_n_layers", "optimizer.activated_layers", "lisa"),
        Key("lisa_step_interval", "optimizer.interval_steps", "lisa"),
        Key("lisa_layers_attribute", "optimizer.interval_steps", "lisa", only("model.layers")),
        Key("qgalore_rank", "optimizer.rank", "q_galore", None, 256),
        Key("qgalore_update_proj_gap", "optimizer.update_proj_gap", "q_galore"),
        Key("qgalore_scale", "optimizer.scale", "q_galore"),
        Key("qgalore_proj_type", "optimizer.proj_type", "q_galore"),
        Key("qgalore_cos_threshold", "optimizer.cos_threshold", "q_galore"),
        Key("qgalore_queue_size", "optimizer.queue_size", "q_galore"),
        Key("optim_target_modules", "optimizer.target_modules", "q_galore galore apollo", projected),
        Key("optim_args.rank", "optimizer.rank", "galore", int),
        Key("optim_args.rank", "optimizer.rank", "apollo", int, 128),
        Key("optim_args.update_proj_gap", "optimizer.update_proj_gap", "galore apollo", int),
        Key("optim_args.scale", "optimizer.scale", "galore apollo", float),
        Key("cosine_min_lr_ratio", "scheduler.min_lr_ratio", "cosine", least),
        *schedules.arguments("lr_scheduler"),
    )

"""How a run is spread over processes: files of DeepSpeed, and transformers' `fsdp`."""

from __future__ import annotations

import json
from typing import Any

from gym_dialect import Choice, Key, processes
from gym_dialect.processes import content, part, said
from gym_llamafactory.table import Keys

#: Entries of a DeepSpeed file that say what keys beside it say, by those keys.
_BESIDE = {
    "train_batch_size": "per_device_train_batch_size",
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "max_grad_norm",
}
#: Entries that change numbers or need DeepSpeed's own code, by what to do instead.
_REFUSED = {
    "optimizer": "set `optim`",
    "scheduler": "set `lr_scheduler_type`",
    "tensor_parallel": "leave it out, and take stage 3",
    "compression_training": "leave it out, and quantize what is trained",
    "sparse_attention": "leave it out",
    "curriculum_learning": "leave it out",
    "progressive_layer_drop": "leave it out",
    "amp": "leave it out, and set `bf16: true` or `fp16: true`",
}
#: Entries of its section `fp16`, by what to do instead.
_SCALED = {
    "loss_scale": "a scale that stays is not here: write 0, and `initial_scale_power`",
    "consecutive_hysteresis": "leave it out: hysteresis begins anew where the scale has risen",
    "fp16_master_weights_and_grads": "leave it out: weights that train are fp32",
}
#: Sizes of Megatron: over how many processes layers, experts or samples are cut. FSDP cuts weights, with the same numbers.
_CUTTING = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "expert_model_parallel_size",
    "context_parallel_size",
)


def zero(value: Any) -> str:
    """Return the strategy that a DeepSpeed file means, or its content. Raises ValueError for what it says beyond that."""
    if part(content(value), "bf16").get("enabled", False) not in (False, "auto"):
        raise ValueError("`bf16.enabled` is set in it: write auto there, and set `bf16`")
    return processes.zero(value, _BESIDE, _REFUSED)


def scaling(value: Any, fp16: Any = None) -> dict[str, float] | None:
    """Return how a DeepSpeed file, or its content, has the loss scaled; None without `fp16`.

    Raises ValueError where it contradicts that, or has a scale that stays or other ways that are not here.
    """
    told = part(content(value), "fp16")
    enabled = told.get("enabled", "auto")
    if enabled != "auto" and bool(enabled) != bool(fp16):
        raise ValueError(f"`fp16.enabled: {json.dumps(enabled)}` stands in it: write auto there, and set `fp16`")
    if not fp16:
        return None
    for entry, advice in _SCALED.items():
        if told.get(entry):
            raise ValueError(f"`fp16.{entry}: {json.dumps(told[entry])}` stands in it: {advice}")
    return {
        "init_scale": 2.0 ** int(told.get("initial_scale_power", 16)),
        "growth_interval": told.get("loss_scale_window", 1000),
        "hysteresis": told.get("hysteresis", 2),
        "min_loss_scale": told.get("min_loss_scale", 1),
    }


def cut(value: Any) -> str:
    """Return how weights are cut up in place of layers and experts: those of Megatron lie whole on few of its processes."""
    if int(value) <= 1:
        return ""
    return said("a size of Megatron", f"{value} parts", "fsdp")


class ProcessKeys(Keys):
    """Keys of what a run is spread over."""

    choices = (
        Choice("deepspeed", "distributed", {"ddp": "ddp", "fsdp": "fsdp"}, read=zero),
        Choice("fsdp", "distributed", {"ddp": "ddp", "fsdp": "fsdp"}, read=processes.sharding),
        *(Choice(key, "distributed", {"fsdp": "fsdp"}, read=cut) for key in _CUTTING),
    )
    keys = (
        Key("ddp_timeout", "distributed.timeout", "ddp fsdp", float),
        Key("deepspeed", "train.loss_scale", convert=scaling, together="fp16"),
    )

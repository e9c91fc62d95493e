"""How a run is spread over processes: files of DeepSpeed, and transformers' `fsdp`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gym_dialect import Choice, Key
from gym_dialect.convert import note
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
_SHARDED = ("full_shard", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2", "true")
_WRAPPING = ("auto_wrap", "offload")  #: which layers are cut, and where they lie: no number changes
#: Sizes of Megatron: over how many processes layers, experts or samples are cut. FSDP cuts weights, with the same numbers.
_CUTTING = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "expert_model_parallel_size",
    "context_parallel_size",
)


def zero(value: Any) -> str:
    """Return the stage of ZeRO of a DeepSpeed file, or of its content. Raises ValueError for what it says beyond that."""
    told = _told(value)
    for entry, key in _BESIDE.items():
        if told.get(entry, "auto") != "auto":
            raise ValueError(f"`{entry}: {told[entry]}` stands in it: write auto there, and set `{key}`")
    for entry, advice in _REFUSED.items():
        if told.get(entry):
            raise ValueError(f"`{entry}` stands in it, which is DeepSpeed's own: {advice}")
    if _part(told, "bf16").get("enabled", False) not in (False, "auto"):
        raise ValueError("`bf16.enabled` is set in it: write auto there, and set `bf16`")
    stage = _part(told, "zero_optimization").get("stage", 0)
    name = "DeepSpeed" if isinstance(value, Mapping) else str(value)
    return _said(name, f"stage {stage}", "fsdp" if stage in (2, 3) else "ddp")


def scaling(value: Any, fp16: Any = None) -> dict[str, float] | None:
    """Return how a DeepSpeed file, or its content, has the loss scaled; None without `fp16`.

    Raises ValueError where it contradicts that, or has a scale that stays or other ways that are not here.
    """
    part = _part(_told(value), "fp16")
    enabled = part.get("enabled", "auto")
    if enabled != "auto" and bool(enabled) != bool(fp16):
        raise ValueError(f"`fp16.enabled: {json.dumps(enabled)}` stands in it: write auto there, and set `fp16`")
    if not fp16:
        return None
    for entry, advice in _SCALED.items():
        if part.get(entry):
            raise ValueError(f"`fp16.{entry}: {json.dumps(part[entry])}` stands in it: {advice}")
    return {
        "init_scale": 2.0 ** int(part.get("initial_scale_power", 16)),
        "growth_interval": part.get("loss_scale_window", 1000),
        "hysteresis": part.get("hysteresis", 2),
        "min_loss_scale": part.get("min_loss_scale", 1),
    }


def sharding(value: Any) -> str:
    """Return how transformers' `fsdp` cuts weights up. Raises ValueError for a word that it does not know."""
    words = value if isinstance(value, list) else str(value).lower().replace(",", " ").split()
    words = [str(word).lower() for word in words]
    ways = [word for word in words if word not in _WRAPPING]
    if not ways:
        return ""
    unknown = [word for word in ways if word not in (*_SHARDED, "no_shard", "false")]
    if unknown or len(ways) > 1:
        raise ValueError(f"`{' '.join(unknown or ways)}` is not one of {', '.join((*_SHARDED[:-1], 'no_shard'))}")
    return _said("fsdp", ways[0], "fsdp" if ways[0] in _SHARDED else "ddp")


def cut(value: Any) -> str:
    """Return how weights are cut up in place of layers and experts: those of Megatron lie whole on few of its processes."""
    if int(value) <= 1:
        return ""
    return _said("a size of Megatron", f"{value} parts", "fsdp")


def _said(what: str, how: str, strategy: str) -> str:
    note(f"{what} ({how}) means `distributed: {strategy}`, which counts with several processes: gym train --nproc N")
    return strategy


def _told(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else _read(Path(str(value)))


def _read(file: Path) -> Mapping[str, Any]:
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except OSError:
        raise ValueError(f"there is no file {file} here: name it from the folder where gym is started") from None
    except ValueError:
        raise ValueError(f"{file} is no JSON") from None
    if not isinstance(told, dict):
        raise ValueError(f"{file} holds no mapping")
    return told


def _part(told: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = told.get(name)
    return part if isinstance(part, Mapping) else {}


class ProcessKeys(Keys):
    """Keys of what a run is spread over."""

    choices = (
        Choice("deepspeed", "distributed", {"ddp": "ddp", "fsdp": "fsdp"}, read=zero),
        Choice("fsdp", "distributed", {"ddp": "ddp", "fsdp": "fsdp"}, read=sharding),
        *(Choice(key, "distributed", {"fsdp": "fsdp"}, read=cut) for key in _CUTTING),
    )
    keys = (
        Key("ddp_timeout", "distributed.timeout", "ddp fsdp", float),
        Key("deepspeed", "train.loss_scale", convert=scaling, together="fp16"),
    )

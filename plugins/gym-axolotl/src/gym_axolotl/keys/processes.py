"""How a run is spread over processes."""

from __future__ import annotations

from typing import Any

from gym_axolotl.table import Keys
from gym_dialect import Choice, Key, processes

#: Entries of a DeepSpeed file that say what keys beside it say, by those keys.
_BESIDE = {
    "train_batch_size": "micro_batch_size",
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "max_grad_norm",
}
#: Entries that change numbers or need DeepSpeed's own code, by what to do instead.
_REFUSED = {
    "optimizer": "set `optimizer`",
    "scheduler": "set `lr_scheduler`",
    "tensor_parallel": "leave it out, and take stage 3",
    "compression_training": "leave it out, and quantize what is trained",
    "sparse_attention": "leave it out",
    "curriculum_learning": "leave it out",
    "progressive_layer_drop": "leave it out",
    "amp": "leave it out, and set `bf16: true` or `fp16: true`",
}
_CUTTING = ("dp_shard_size", "tensor_parallel_size", "expert_parallel_size")
"""Over how many processes weights, layers or experts are cut. FSDP cuts weights, with the same numbers."""


def zero(value: Any) -> str:
    """Return the strategy that a DeepSpeed file means, or its content. Raises ValueError for what it says beyond that."""
    return processes.zero(value, _BESIDE, _REFUSED)


def sharded(value: Any) -> str:
    """Return the strategy that a mapping of options of FSDP means."""
    return processes.said("fsdp_config", "FSDP", "fsdp") if value else ""


def cut(value: Any) -> str:
    """Return how weights are cut up, in place of layers and experts."""
    return processes.said("a number of parts", str(value), "fsdp") if int(value) > 1 else ""


class ProcessKeys(Keys):
    """Keys of what a run is spread over."""

    choices = (
        Choice("deepspeed", "distributed", {"ddp": "ddp", "fsdp": "fsdp"}, read=zero),
        Choice("fsdp", "distributed", {"ddp": "ddp", "fsdp": "fsdp"}, read=processes.sharding),
        Choice("fsdp_config", "distributed", {"fsdp": "fsdp"}, read=sharded),
        *(Choice(key, "distributed", {"fsdp": "fsdp"}, read=cut) for key in _CUTTING),
    )
    keys = (
        Key("context_parallel_size", "distributed.context_parallel_size", "ddp fsdp"),
        Key("sequence_parallel_degree", "distributed.context_parallel_size", "ddp fsdp"),
        Key("ddp_timeout", "distributed.timeout", "ddp fsdp", float),
    )

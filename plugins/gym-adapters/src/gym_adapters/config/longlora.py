"""LongLoRA: LoRA with shifted sparse attention in training."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt

from gym_adapters.config.base import Names
from gym_adapters.config.lora import LoRA


class LongLoRA(LoRA):
    """Trains on long texts with attention in groups (shifted sparse attention), LoRA, and the embeddings and norms whole.

        y = W x + scaling B A x                   scaling = alpha / rank
        size = ceil(length / groups)              of a sample
        group(t) = floor(t / size)                for the first half of the heads
        group(t) = floor((t - floor(size / 2)) / size)          for the other half, where groups > 1
        t attends to s                            where s <= t and group(s) = group(t), in training alone

    W `[out, in]` stays; A `[rank, in]` begins uniform within 1 / sqrt(in) of zero, B `[out, rank]` as zeros, and both train,
    with embeddings and norms whole (section 3). Outside of training every token sees all before it. The longer context itself
    is made by the model's RoPE options.

    Trains: `rank (out + in)` numbers for a layer `[out, in]`, the embeddings and every norm; `modules_to_save` names others.

    Code: ours, over peft's LoRA; peft has no such attention.

    Differs: in the code of the paper the shifted half wraps around, so that the first tokens see the last; here the half part
    at either end is a group by itself. Samples have any length. Of tied embeddings the input side trains, and the merged model
    has two of them.

    On the disk: a LoRA with embeddings and norms, which peft loads. Merges; left out while it does not train, it leaves the
    base.

    Not with: samples that share a prompt, as in preference and group algorithms; padding masks (padding counts as text in rows
    that are padded because `model.attention` is set); models that attend in a way of their own.
    """

    target: ClassVar[str] = "gym_adapters.tuners.longlora:LongLoraAdapter"
    shares_prefixes: ClassVar[bool] = False  # the groups of a sample follow from its length

    groups: PositiveInt = 4
    """Parts of a sample within which it attends in training; 1 is full attention, which is what inference does in any case."""
    modules_to_save: Names = "all"
    """Modules trained whole beside the adapter and saved in it; `all` is the embeddings and every norm."""

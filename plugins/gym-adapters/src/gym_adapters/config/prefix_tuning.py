"""Prefix tuning: keys and values that every token attends to, in every layer."""

from __future__ import annotations

from typing import ClassVar, Literal

from gym_adapters.config.base import VirtualTokenOptions


class PrefixTuning(VirtualTokenOptions):
    """Trains keys and values that every token attends to, in every layer, before its own text. Cannot be merged.

        token t attends to [K; its own keys up to t], [V; its own values up to t]          in each layer
        position of token t of a text = n + t     t from 0

    K and V `[n, kv_heads, head_dim]` of each layer, n = `num_virtual_tokens`, train; the model stays as it is. They begin as
    the keys and values that the model computes for n tokens drawn from its vocabulary, or as normal noise.

    Trains: `2 tokens kv_heads head_dim` numbers for each layer.

    Code: ours: peft puts them into the cache of single rows; here attention adds them, so they work in packed rows, behind
    shared prompts and in the generator, and count towards no `batch_tokens`.

    Differs: the paper trains them through a network that is thrown away afterwards; here they train by themselves. K is as in a
    cache: turned to its positions already.

    On the disk: all of them in one matrix by peft's name, which peft loads and computes the same with. Left out, it leaves the
    base to the bit. It begins as something, so a reference has its first values: scores from before training, or a second model.

    Not with: merging, for no weight computes that; models with sliding windows, in which the virtual tokens would drop out of
    sight, or that attend in a way of their own.
    """

    target: ClassVar[str] = "gym_adapters.tuners.prefix_tuning:PrefixTuningAdapter"

    init: Literal["sample_vocab", "random"] = "sample_vocab"
    """First values: what the model computes for tokens drawn from its vocabulary (as the paper advises), or normal noise."""

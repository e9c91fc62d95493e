"""Prompt tuning: embeddings of virtual tokens that stand before every text."""

from __future__ import annotations

from typing import ClassVar

from gym_adapters.config.base import VirtualTokenOptions


class PromptTuning(VirtualTokenOptions):
    """Trains the embeddings of a few virtual tokens that stand before every text. Cannot be merged.

        k_1..n, v_1..n = keys and values that the model computes for P alone, in each layer
        token t attends to [k_1..n; its own keys up to t], [v_1..n; its own values up to t]
        position of token t of a text = n + t     t from 0

    P `[n, hidden]`, n = `num_virtual_tokens`, trains; the model stays as it is. P begins as the embeddings of tokens drawn from
    the vocabulary, or those of `init_text`, repeated or cut. What P becomes in a layer depends on no text, so it is computed
    once a pass, and without gradients once for many passes.

    Trains: `tokens hidden` numbers, once for the model.

    Code: ours: peft puts them into the inputs of single rows; here attention adds them, so they work in packed rows, behind
    shared prompts and in the generator, and count towards no `batch_tokens`.

    Differs: the paper draws from the most common tokens, here all are drawn from.

    On the disk: P by peft's name, which peft loads and computes the same with. Left out, it leaves the base to the bit. It
    begins as something, so a reference has its first values: scores from before training, or a second model.

    Not with: merging, for no weight computes that; models with sliding windows, in which the virtual tokens would drop out of
    sight, or that attend in a way of their own.
    """

    target: ClassVar[str] = "gym_adapters.tuners.prompt_tuning:PromptTuningAdapter"

    init_text: str | None = None
    """Text whose tokens the virtual ones begin as, repeated or cut; without it, tokens drawn from the vocabulary."""

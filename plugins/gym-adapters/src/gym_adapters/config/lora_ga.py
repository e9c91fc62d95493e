"""LoRA-GA: LoRA that begins along the gradient of the first step."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveFloat

from gym_adapters.config.lora import LoRA


class LoRAGA(LoRA):
    """LoRA that begins along the gradient of the first step, scaled by alpha / sqrt(rank).

        y = W x + scaling (B A - B0 A0) x         scaling = alpha / sqrt(rank)
        G = U S V^T                               the gradient of W in the first step
        A0 = c V_(1..rank)^T                      c = out^(1/4) / sqrt(stable_gamma)
        B0 = c U_(rank+1..2 rank)

    W `[out, in]` stays as it is, and so do A0 `[rank, in]` and B0 `[out, rank]`; A and B begin as they are and train. G is
    summed over the batches of the first step. Where a weight has fewer than 2 rank singular values, B0 has the last.

    Trains: `rank (out + in)` numbers for a layer `[out, in]`; as many stay beside them.

    Code: peft's layers, first values ours: peft scales B by the singular values of the gradient and leaves A as it is; in the
    paper and its code both are scaled alike.

    Differs: the paper and peft write W - scaling B0 A0 in the place of W, which then fits only what began with the same data;
    here the second pair takes it away, which is the same sum. The gradients lie on the CPU while they are summed.

    On the disk: one plain LoRA of twice the rank, [B, -B0] and [A; A0], for the original base, which opens without data.
    Merges; left out, it leaves the base to the bit, so the base is its own reference.

    Not with: a model that has no gradient yet, under a value head that says 0 everywhere; GPT-2's layers, embeddings and
    quantized weights; a rank above what a weight has; an adapter of `adapter_name_or_path` that is to go on
    (`create_new_adapter` stands beside it).
    """

    target: ClassVar[str] = "gym_adapters.tuners.lora_ga:LoraGAAdapter"

    alpha: PositiveFloat | None = None
    """The update is scaled by alpha / sqrt(rank); without it alpha is twice the rank."""
    stable_gamma: PositiveFloat = 16.0
    """Stable gamma: A and B begin with rows and columns of length `out^(1/4) / sqrt(stable_gamma)`."""

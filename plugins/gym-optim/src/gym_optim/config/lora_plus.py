"""The options of LoRA+."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveFloat

from gym_optim.config.base import AdamOptions, AfterBackward, Elementwise


class LoRAPlus(AdamOptions, AfterBackward, Elementwise):
    """AdamW with a higher learning rate for the B of each LoRA pair than for its A.

        B, and vectors:          AdamW with learning rate eta lr_ratio
        A and everything else:   AdamW with learning rate eta
        adapters of embeddings:  AdamW with learning rate `lr_embedding`

    The layer computes with W + s B A; A is r x n, B is m x r. AdamW is that of `adamw`, with the same options for all; a
    schedule is a factor on all three rates. Pairs are told by the names `lora_A` and `lora_B`, adapters of embeddings by
    `lora_embedding_A` and `lora_embedding_B`. Vectors, such as the lengths of DoRA, have the rate of B, as in peft.

    State: 8 r (m + n) bytes for the pair of a matrix m x n, two fp32 moments of each number.

    Code: groups of ours over torch's fused AdamW: peft's takes the model object. The rates are the same, and a test compares
    them.

    Differs: vectors do not decay; in peft the lengths of DoRA do.

    Not with: a model without a pair of LoRA (`adapter: lora` and its kin have one), and parameters without names: both are
    refused by name. `ddp` and `fsdp` are fine; there is no `in_backward`.
    """

    target: ClassVar[str] = "gym_optim.optimizers.lora_plus:lora_plus"
    general: ClassVar[bool] = False

    lr_ratio: PositiveFloat = 16.0
    """Learning rate of B over that of A."""
    lr_embedding: PositiveFloat = 1e-6
    """Learning rate of the adapters of embeddings."""

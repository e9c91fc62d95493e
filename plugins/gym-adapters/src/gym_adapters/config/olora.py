"""OLoRA: LoRA that begins as the leading part of each weight's QR decomposition."""

from __future__ import annotations

from typing import ClassVar

from gym_adapters.config.lora import LoRA


class OLoRA(LoRA):
    """LoRA that begins as the leading part of each weight's QR decomposition, so with orthonormal B.

        y = W x + scaling (B A - B0 A0) x         scaling = alpha / rank
        W = Q R                                   Q: orthonormal columns, R: upper triangular
        A0 = the first rows of R                  B0 = the first columns of Q

    W `[out, in]` stays as it is, and so do A0 `[rank, in]` and B0 `[out, rank]`; A and B begin as they are and train.

    Trains: `rank (out + in)` numbers for a layer `[out, in]`; as many stay beside them.

    Code: peft's layers, first values ours.

    Differs: the paper and peft write W - scaling B0 A0 in the place of W; here the second pair takes it away, which is the same
    sum, and the base keeps its bits. As in peft, the scaling is not taken out of A0 and B0, so for alpha other than the rank
    more or less than the leading part is trained.

    On the disk: one plain LoRA of twice the rank, [B, -B0] and [A; A0], for the original base, which peft, vLLM and others
    load. Merges; left out, it leaves the base to the bit, so the base is its own reference.

    Over a quantized base the first pair is that of the weights as they are stored, and merging goes into those, decoded.

    Not with: GPT-2's layers and embeddings; a rank above what a weight has; an adapter of `adapter_name_or_path` that is to go
    on, which has begun already (`create_new_adapter` stands beside it).
    """

    target: ClassVar[str] = "gym_adapters.tuners.olora:OLoraAdapter"

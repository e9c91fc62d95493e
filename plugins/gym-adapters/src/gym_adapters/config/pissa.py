"""PiSSA: LoRA that begins as the leading part of each weight."""

from __future__ import annotations

from typing import ClassVar

from pydantic import field_validator

from gym_adapters.config.lora import LoRA


class PiSSA(LoRA):
    """LoRA that begins as the leading part of each weight, and trains that.

        y = W x + scaling (B A - B0 A0) x         scaling = alpha / rank
        W = U S V^T                               its singular values, the largest first
        A0 = sqrt(S_r / scaling) V_r^T            B0 = U_r sqrt(S_r / scaling)

    W `[out, in]` stays as it is, and so do A0 `[rank, in]` and B0 `[out, rank]`, whose product is the best of this rank for W;
    A and B begin as they are and train. The decomposition is that of `iterations` power iterations with 8 directions to spare,
    or exact.

    Trains: `rank (out + in)` numbers for a layer `[out, in]`; as many stay beside them.

    Code: peft's layers, first values ours.

    Differs: the paper and peft write W - scaling B0 A0 in the place of W, which costs a base in bf16 some bits, fits no other
    base, and needs the same seed again; here the second pair takes it away, which is the same sum. peft has no directions to
    spare. The paper has alpha = rank; any other begins the same here.

    On the disk: one plain LoRA of twice the rank, [B, -B0] and [A; A0], for the original base, which peft, vLLM and others
    load; there is nothing to convert. Merges; left out, it leaves the base to the bit, so the base is its own reference.

    Over a quantized base the first pair is that of the weights as they are stored, and merging goes into those, decoded.

    Not with: GPT-2's layers and embeddings; a rank above what a weight has; an adapter of `adapter_name_or_path` that is to go
    on, which has begun already (`create_new_adapter` stands beside it).
    """

    target: ClassVar[str] = "gym_adapters.tuners.pissa:PissaAdapter"

    iterations: int = 16
    """Power iterations that find the leading part; -1 decomposes the weight exactly, which takes longer."""

    @field_validator("iterations")
    @classmethod
    def _some(cls, iterations: int) -> int:
        if iterations < 1 and iterations != -1:
            raise ValueError("takes at least 1 iteration, or -1 for an exact decomposition")
        return iterations

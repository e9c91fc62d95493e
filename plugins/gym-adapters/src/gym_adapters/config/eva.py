"""EVA: LoRA that begins where the inputs of a layer vary most."""

from __future__ import annotations

from typing import ClassVar

from gym_adapters.config.lora import LoRA


class EVA(LoRA):
    """LoRA whose A begins as the directions in which a layer's inputs vary most in the first step.

        y = W x + scaling B A x                   scaling = alpha / rank
        X = U S V^T                               X `[tokens, in]`: what goes into the layer in the first step
        A = V_(1..rank)^T,  B = 0                 at first

    W `[out, in]` stays as it is; A `[rank, in]` and B `[out, rank]` train. X has every token of the first step but padding. It
    is seen batch by batch, and after each the 4 rank largest directions are kept, with their singular values.

    Trains: `rank (out + in)` numbers for a layer `[out, in]`.

    Code: peft's layers, first values ours: peft wants a loader of its own, ours sees the batches of the run.

    Differs: every layer keeps one rank (rho = 1), so that what trains does not depend on the data; in the paper ranks go where
    they explain most. It looks at one step, and not until directions stay. peft takes the mean from the inputs first, and looks
    only at tokens that have labels.

    On the disk: a plain LoRA for the base, which peft, vLLM and others load, and which opens without data. Merges; left out, it
    leaves the base to the bit, so the base is its own reference.

    Not with: a first step whose inputs have fewer directions than the rank (`train.batch_size` or `train.accumulate` show it
    more); GPT-2's layers and embeddings; an adapter of `adapter_name_or_path` that is to go on (`create_new_adapter` stands
    beside it).
    """

    target: ClassVar[str] = "gym_adapters.tuners.eva:EvaAdapter"

"""rsLoRA: LoRA scaled by alpha / sqrt(rank)."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveFloat

from gym_adapters.config.lora import LoRA


class RsLoRA(LoRA):
    """LoRA scaled by alpha / sqrt(rank), so that a higher rank does not learn more slowly.

        y = W x + scaling B A x        scaling = alpha / sqrt(rank)

    As in `lora`, W `[out, in]` stays, A `[rank, in]` begins uniform within 1 / sqrt(in) of zero, and B `[out, rank]` as zeros.
    So scaled, the update and its gradients keep their size as the rank grows, for one alpha.

    Trains: `rank (out + in)` numbers for a layer `[out, in]`.

    Code: peft's, by its option `use_rslora`, which is right.

    Differs: without `alpha` it is twice the rank, as for `lora` and in LLaMA-Factory, and the scaling is 2 sqrt(rank), which
    grows. Where ranks are compared, set `alpha`.

    On the disk: A and B by peft's names, which peft, vLLM and others load. Merges; left out, it leaves the base to the bit, so
    the base is its own reference.

    Not with: what `lora` refuses, and `use_dora` in the same file of LLaMA-Factory.
    """

    target: ClassVar[str] = "gym_adapters.tuners.rslora:RsLoraAdapter"

    alpha: PositiveFloat | None = None
    """The update is scaled by alpha / sqrt(rank); without it alpha is twice the rank."""

"""LoftQ: LoRA over rounded weights, which begins as the best correction of the rounding."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import PositiveInt

from gym_adapters.config.base import LowRankOptions, PartOptions


class LoftQ(PartOptions, LowRankOptions):
    """LoRA over weights rounded to a few bits, which begins as the best correction of the rounding.

        y = Q x + scaling B A x                   scaling = alpha / rank
        Q = round(W - scaling B A)                in turns, from B A = 0 on
        scaling B A = the best of this rank for W - Q, from its singular values, shared between A and B

    Q takes the place of W `[out, in]`; A `[rank, in]` and B `[out, rank]` train. Rounding is to the levels of NormalFloat
    (2305.14314, appendix E), times the largest magnitude of each `block_size`. That changes with every turn, which can
    therefore be worse than the one before: the best of `iterations` turns by the norm of W - Q - scaling B A is taken.

    Trains: `rank (out + in)` numbers for a layer `[out, in]`.

    Code: peft's layers, the rest ours: peft's runs on a GPU only, and leaves the scaling out, so it is right for alpha = rank
    alone.

    Over a quantized base (`model.quantization`), its quantizer rounds in the place of NormalFloat and stores Q in its bits; W is
    read from its file again, a layer at a time. That is what LoftQ is for. Else Q is held in the precision of the
    base's files, and scales are not rounded a second time.

    Differs: the paper takes the last turn.

    On the disk: A and B by peft's names, and in loftq.safetensors the pair that W was rounded beside, from which Gym makes the
    same Q of the original model. On that model as it was, peft computes something else; for other programs, `gym export` merges
    it. A reference is the rounded base with the first update, which is kept beside the one that trains.

    Not with: other adapters beside it, and a place in a stack; GPT-2's layers and embeddings; `bits` and `block_size`
    over a quantized base; a rank above what a weight has.
    """

    target: ClassVar[str] = "gym_adapters.tuners.loftq:LoftQAdapter"
    starts_unchanged: ClassVar[bool] = False

    bits: Literal[2, 3, 4] = 4
    """Bits of a weight: NormalFloat, with a scale for each block."""
    block_size: PositiveInt = 64
    """Weights that share a scale."""
    iterations: PositiveInt = 5
    """Turns of rounding and correcting; the best is taken."""

"""DoRA: LoRA for the direction of each row of a weight, and a length that trains apart from it."""

from __future__ import annotations

from typing import ClassVar

from gym_adapters.config.base import LowRankOptions, PartOptions


class DoRA(PartOptions, LowRankOptions):
    """LoRA for the direction of each row of a weight, and a length of the row that trains apart from it.

        V = W + scaling B A        scaling = alpha / rank
        y = (m / |V|) V x          |V|: the length of each row of V, through which no gradient goes (section 4.3)

    W `[out, in]` stays as it is; m `[out]`, A `[rank, in]` and B `[out, rank]` train. m begins as the lengths of the rows of W,
    A uniform within 1 / sqrt(in) of zero, B as zeros. With `dropout`, W x is of all inputs, and what is added to it of fewer.

    Trains: `rank (out + in) + out` numbers for a layer `[out, in]`.

    Code: peft's, which is right.

    Differs: by its shape in the paper, m is one length for each input; in the code of its authors, in peft and here it is one
    for each output.

    On the disk: A, B and m by peft's names, which peft loads. Merges; left out, it leaves the base to the bit, so the base is
    its own reference.

    Not with: other adapters beside it, and a place in a stack: what it computes is no sum of updates.
    Merging refuses quantized weights.
    """

    target: ClassVar[str] = "gym_adapters.tuners.dora:DoraAdapter"

"""DoRA: LoRA for the direction of each row of a weight, and a length that trains apart from it."""

from __future__ import annotations

from typing import ClassVar

from gym_adapters.config.base import LowRankOptions


class DoRA(LowRankOptions):
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

    Proof: merged weights are the formula in float64 to 1e-5 (`test_dora_is_the_formula_in_float64`); the output begins as the
    base's, and peft computes the same from the files (`test_it_begins_as_the_base_leaves_it_and_is_for_peft_what_it_is_here`);
    merged = unmerged, and opened again it is the same to the bit (`test_merged_it_computes_the_same_and_opened_again_too`); it
    has no option for others beside it (`test_what_cannot_stand_beside_others_has_no_option_for_them`).
    """

    target: ClassVar[str] = "gym_adapters.tuners.dora:Dora"

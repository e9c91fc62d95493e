"""Updates that are a product other than LoRA's: Hadamard, Kronecker, or of random matrices."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from gym_adapters.config.tuner import Tuner


class LoHa(Tuner):
    """Trains an update that is the element-wise product of two low-rank ones, so that its rank is up to the square of theirs.

        y = W x + scaling ((B1 A1) * (B2 A2)) x   scaling = alpha / rank, * element by element

    W `[out, in]` stays as it is; B1 and B2 `[out, rank]`, A1 and A2 `[rank, in]` train. A2 begins as zeros, the others uniform,
    within 1 / sqrt(rank) for B1 and B2 and 1 / sqrt(in) for A1. The matrix that is added is built whole in every pass.

    Trains: `2 rank (out + in)` numbers for a layer `[out, in]`.

    Code: peft's, which is right. Its layers draw a random number in every training step for a dropout that is off, past which
    nothing can be planned or compiled; here they do not.

    Differs: the paper makes a whole weight of such a product, here it is the update of one; alpha / rank is LyCORIS's and
    peft's, and is 1 by default.

    On the disk: the four matrices by peft's names, which peft loads. Merges; left out, it leaves the base, so the base is its
    own reference.

    Not with: GPT-2's layers and embeddings; quantized weights, where it is merged.

    Proof: what merging adds is the formula, and has the square of the rank (`test_loha_is_a_product_by_element`); the output
    begins as the base's, and nothing else trains (`test_it_begins_unchanged_and_only_what_it_declares_trains`); as many numbers
    train (`test_trainable_counts_are_those_of_the_papers`); peft computes the same from the files (`test_plain_peft_loads_it`);
    merged = unmerged (`test_merged_computes_the_same_and_is_plain`).
    """

    target: ClassVar[str] = "gym_adapters.factored:Loha"

    rank: PositiveInt = 8
    """Rank of each of the two factors."""
    alpha: PositiveInt | None = None
    """The update is scaled by alpha / rank; without it alpha is the rank."""


class LoKr(Tuner):
    """Trains an update that is a Kronecker product of a small matrix and a low-rank one.

        y = W x + scaling (C (x) D) x             scaling = alpha / rank, (x): the Kronecker product
        out = l k,  in = m n                      l, m: `factor`, or the next divisor below it and the root
        D = B A                                   or one matrix, where the rank is at least half of the larger of k and n

    W `[out, in]` stays as it is; C `[l, m]`, B `[k, rank]` and A `[rank, n]` train. C begins as zeros, B and A uniform, within
    1 / sqrt(rank) and 1 / sqrt(n). With `both`, C is a product of this rank too, where the larger of l and m is more than twice
    the rank. The matrix that is added is built whole in every pass.

    Trains: `l m + rank (k + n)` numbers for a layer `[out, in]`, or `l m + k n`: about `sqrt(out in)`.

    Code: peft's, which is right. Its layers draw a random number in every training step for a dropout that is off, past which
    nothing can be planned or compiled; here they do not.

    Differs: peft begins with C as zeros, the code of LyCORIS with the other one; both begin unchanged.

    On the disk: the matrices by peft's names, which peft loads. Merges; left out, it leaves the base, so the base is its own
    reference.

    Not with: GPT-2's layers and embeddings; quantized weights, where it is merged.

    Proof: what merging adds is the formula (`test_lokr_is_a_kronecker_product`); the output begins as the base's, and nothing
    else trains (`test_it_begins_unchanged_and_only_what_it_declares_trains`); peft computes the same from the files
    (`test_plain_peft_loads_it`); merged = unmerged (`test_merged_computes_the_same_and_is_plain`); opened again it is the same
    to the bit (`test_saved_opened_and_restored_bit_for_bit`).
    """

    target: ClassVar[str] = "gym_adapters.factored:Lokr"

    rank: PositiveInt = 8
    """Rank of the second matrix, where it is large enough for that; a small one is trained whole."""
    alpha: PositiveInt | None = None
    """The update is scaled by alpha / rank; without it alpha is the rank."""
    factor: int = -1
    """Largest size of a side of the first matrix; -1 divides a side as near to its square root as it can be divided."""
    both: bool = False
    """Whether the first matrix is of this rank too, where it is large enough."""

    @field_validator("factor")
    @classmethod
    def _a_size(cls, factor: int) -> int:
        if factor < 1 and factor != -1:
            raise ValueError("a size is at least 1; -1 lets the shape decide")
        return factor


class VeRA(Tuner):
    """Trains two vectors for each linear layer, which scale random matrices that all layers share.

        y = W x + diag(b) B diag(d) A x           equation 2

    W `[out, in]` stays as it is, and so do A and B, drawn once from `draw` for all layers: A `[rank, most in]` uniform within
    sqrt(6 / most in), B `[most out, rank]` within sqrt(6 / rank); a layer takes the first rows and columns that it needs. b
    `[out]` begins as zeros, d `[rank]` as `scale`; both train.

    Trains: `out + rank` numbers for a layer `[out, in]`.

    Code: peft's, which is right.

    Differs: from peft in nothing that is computed. It has the option not to save A and B, and to draw them anew, which differs
    between machines; here they are always saved.

    On the disk: b and d by peft's names, with A and B, so that peft draws nothing. Gym draws them, and refuses a folder with
    others. Merges; left out, it leaves the base, so the base is its own reference.

    Not with: a folder whose A and B another `draw`, or another kind of machine, made (peft takes it); GPT-2's layers and
    embeddings; quantized weights, where it is merged.

    Proof: what merging adds is the formula, with one A and B for all layers
    (`test_vera_scales_matrices_that_all_layers_share`); other matrices are refused
    (`test_vera_with_other_matrices_is_refused`); the seed of a run has no part in them
    (`test_vera_needs_no_seed_to_be_read_again`); the output begins as the base's
    (`test_it_begins_unchanged_and_only_what_it_declares_trains`); peft computes the same from the files
    (`test_plain_peft_loads_it`).
    """

    target: ClassVar[str] = "gym_adapters.factored:Vera"

    rank: PositiveInt = 256
    """Rank of the random matrices; each layer trains this many numbers, and one for each of its outputs."""
    scale: PositiveFloat = 0.1
    """First value of the vector between the two matrices; the one after them is zero at first."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of a layer's inputs that the update does not see in a training step."""
    draw: Annotated[int, Field(ge=0)] = 0
    """Seed of the random matrices, which are no part of what trains: another one is another adapter."""

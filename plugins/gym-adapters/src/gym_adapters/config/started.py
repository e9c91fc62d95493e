"""Low-rank updates that begin as what a weight, a gradient, inputs or rounding say."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import PositiveFloat, PositiveInt, field_validator

from gym_adapters.config.lora import LoRA, LowRankTuner
from gym_core import Flat


def _nothing(value: Any) -> None:
    """Accept a key that has no meaning here."""


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

    Not with: GPT-2's layers, embeddings and quantized weights; a rank above what a weight has; an adapter of `adapters` that is
    to go on, which has begun already (`anew` stands beside it).

    Proof: it begins as the leading part in NumPy (`test_pissa_begins_as_the_leading_part`); that and the rest are peft's, 1e-4
    (`test_what_begins_and_what_is_left_are_those_of_peft`); the output begins as the base's, and peft computes the same from
    the files (`test_it_begins_as_the_base_leaves_it_and_is_for_peft_what_it_is_here`); opened with another seed it is the same
    to the bit (`test_merged_it_computes_the_same_and_opened_again_too`); a base in bf16 keeps every bit
    (`test_a_bf16_base_keeps_its_weights_and_the_output_stays`).
    """

    target: ClassVar[str] = "gym_adapters.started:Pissa"

    iterations: Annotated[int, Flat("pissa_iter"), Flat("pissa_convert", convert=_nothing)] = 16
    """Power iterations that find the leading part; -1 decomposes the weight exactly, which takes longer."""

    @field_validator("iterations")
    @classmethod
    def _some(cls, iterations: int) -> int:
        if iterations < 1 and iterations != -1:
            raise ValueError("takes at least 1 iteration, or -1 for an exact decomposition")
        return iterations


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

    Not with: GPT-2's layers, embeddings and quantized weights; a rank above what a weight has; an adapter of `adapters` that is
    to go on, which has begun already (`anew` stands beside it).

    Proof: what it begins with and what is left of W are peft's, 1e-4 (`test_what_begins_and_what_is_left_are_those_of_peft`);
    the output begins as the base's, and peft computes the same from the files
    (`test_it_begins_as_the_base_leaves_it_and_is_for_peft_what_it_is_here`); merged = unmerged, and opened again it is the same
    to the bit (`test_merged_it_computes_the_same_and_opened_again_too`); a rank that a weight does not have is an error
    (`test_a_rank_that_a_weight_does_not_have_is_an_error`).
    """

    target: ClassVar[str] = "gym_adapters.started:Olora"


class LoRAGA(LoRA):
    """LoRA that begins along the gradient of the first step, scaled by alpha / sqrt(rank).

        y = W x + scaling (B A - B0 A0) x         scaling = alpha / sqrt(rank)
        G = U S V^T                               the gradient of W in the first step
        A0 = c V_(1..rank)^T                      c = out^(1/4) / sqrt(gamma)
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
    quantized weights; a rank above what a weight has; an adapter of `adapters` that is to go on (`anew` stands beside it).

    Proof: A and B are the singular vectors in NumPy, of that length (`test_lora_ga_begins_along_the_gradient`); its first step
    goes along the full gradient more than LoRA's
    (`test_the_first_step_of_lora_ga_goes_more_along_the_gradient_than_that_of_lora`); the output begins as the base's
    (`test_it_begins_as_the_base_leaves_it_and_is_for_peft_what_it_is_here`); opened with another seed and no data it is the
    same to the bit (`test_merged_it_computes_the_same_and_opened_again_too`); in how many batches a step comes does not matter
    (`test_how_a_step_is_cut_does_not_matter`).
    """

    target: ClassVar[str] = "gym_adapters.started:LoraGA"

    alpha: Annotated[PositiveFloat | None, Flat("lora_alpha")] = None
    """The update is scaled by alpha / sqrt(rank); without it alpha is twice the rank."""
    gamma: PositiveFloat = 16.0
    """A and B begin with rows and columns of length `out^(1/4) / sqrt(gamma)`."""


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
    more); GPT-2's layers and embeddings; an adapter of `adapters` that is to go on (`anew` stands beside it).

    Proof: A is the singular vectors in NumPy, over several batches (`test_eva_begins_where_inputs_vary_over_all_batches`), and
    padding is not seen (`test_eva_sees_no_padding`); the output begins as the base's, and peft computes the same from the files
    (`test_it_begins_as_the_base_leaves_it_and_is_for_peft_what_it_is_here`); opened without data it is the same to the bit
    (`test_merged_it_computes_the_same_and_opened_again_too`); in how many batches a step comes does not matter
    (`test_how_a_step_is_cut_does_not_matter`).
    """

    target: ClassVar[str] = "gym_adapters.eva:Eva"


class LoftQ(LowRankTuner):
    """LoRA over weights rounded to a few bits, which begins as the best correction of the rounding.

        y = Q x + scaling B A x                   scaling = alpha / rank
        Q = round(W - scaling B A)                in turns, from B A = 0 on
        scaling B A = the best of this rank for W - Q, from its singular values, shared between A and B

    Q takes the place of W `[out, in]`; A `[rank, in]` and B `[out, rank]` train. Rounding is to the levels of NormalFloat
    (2305.14314, appendix E), times the largest magnitude of each `block`. That changes with every turn, which can therefore be
    worse than the one before: the best of `iterations` turns by the norm of W - Q - scaling B A is taken.

    Trains: `rank (out + in)` numbers for a layer `[out, in]`.

    Code: peft's layers, the rest ours: peft's runs on a GPU only, and leaves the scaling out, so it is right for alpha = rank
    alone.

    Differs: the paper takes the last turn. Scales are not rounded a second time. Q is held in the precision of the base, so
    that rounding alone saves no memory here.

    On the disk: A and B by peft's names, and in loftq.safetensors the pair that W was rounded beside, from which Gym makes the
    same Q of the original model. On that model as it was, peft computes something else; for other programs, `gym export` merges
    it. A reference has the rounded base and the first update: scores from before training, or a second model.

    Not with: other adapters beside it, and a place in a stack; GPT-2's layers, embeddings and weights that are quantized
    already; a rank above what a weight has.

    Proof: the levels are those published (`test_the_levels_are_those_published`); the error is below that of rounding alone,
    never worse for more turns (`test_it_is_better_than_rounding_and_never_worse_for_more_turns`), and the same for any scaling
    (`test_it_is_as_good_for_any_scaling`); the model is closer to the base than a rounded one
    (`test_begun_it_is_closer_to_the_base_than_rounding_is`); opened again it is the same to the bit
    (`test_merged_it_computes_the_same_and_opened_again_too`).
    """

    target: ClassVar[str] = "gym_adapters.loftq:Loftq"
    starts_unchanged: ClassVar[bool] = False

    bits: Literal[2, 3, 4] = 4
    """Bits of a weight: NormalFloat, with a scale for each block."""
    block: PositiveInt = 64
    """Weights that share a scale."""
    iterations: PositiveInt = 5
    """Turns of rounding and correcting; the best is taken."""

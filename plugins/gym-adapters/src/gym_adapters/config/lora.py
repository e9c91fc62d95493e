"""Low-rank updates that begin at random."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from gym_adapters.config.tuner import Names, Tuner
from gym_core import Flat

Decay = Annotated[float, Field(gt=0, lt=1)]
Steps = Annotated[float, Field(ge=0)]  #: a number of steps, or below 1 a share of all


class LowRankTuner(Tuner):
    """The options that every low-rank update of linear layers has."""

    rank: Annotated[PositiveInt, Flat("lora_rank")] = 8
    """Rank of the update."""
    alpha: Annotated[PositiveFloat | None, Flat("lora_alpha")] = None
    """The update is scaled by alpha / rank; without it alpha is twice the rank."""
    dropout: Annotated[float, Field(ge=0, lt=1), Flat("lora_dropout")] = 0.0
    """Share of a layer's inputs that the update does not see in a training step."""
    modules: Annotated[Names, Flat("lora_target")] = "all"
    """Linear layers to adapt, or what they are in, such as `q_proj,mlp`; `all` is every one but the language-model head."""


class LoRA(LowRankTuner):
    """Trains a low-rank update of each linear layer, and leaves the model itself alone.

        y = W x + scaling B A x        scaling = alpha / rank

    x `[in]` goes into a layer and y `[out]` comes out. W `[out, in]` stays as it is; A `[rank, in]` and B `[out, rank]` train.
    A begins uniform within 1 / sqrt(in) of zero, B as zeros, so that nothing changes at first. Where an embedding is adapted, A
    begins as zeros and B normal. With `dropout` the update alone sees fewer inputs.

    Trains: `rank (out + in)` numbers for a layer `[out, in]`, in fp32 whatever the precision of the base.

    Code: peft's, which is right; several adapters beside one another (`adapters`, `anew`) are ours.

    Differs: the paper draws A from a normal distribution, its code and peft from a uniform one. The paper adapts projections of
    attention alone; `all` is every linear layer but the head. peft adds the update of an input embedding to the head too where
    it merges into tied embeddings; here the merged model has two of them.

    On the disk: A and B by peft's names, which peft, vLLM and others load. Merges, in fp32, rounded once. Left out, it leaves
    the base to the bit, so the base is its own reference.

    Not with: a weight that is quantized, where it is merged. Of mixtures whose layers have names that experts once had, such as
    GLM-4 MoE and DeepSeek-V3, peft opens a part of what is saved; Gym opens all of it, and a line says so.

    Proof: the output before the first step is the base's to the bit (`test_output_is_unchanged_before_training`); no weight of
    the base is written (`test_the_base_is_untouched`); merged = unmerged, tied or not
    (`test_merged_computes_the_same_and_leaves_the_adapter`); peft computes the same bits from the files
    (`test_plain_peft_loads_it`); what others hold stays, and one file has all of it
    (`test_a_new_one_trains_beside_those_that_are_there`).
    """

    target: ClassVar[str] = "gym_adapters.lora:Lora"

    adapters: Annotated[Names, Flat("adapter_name_or_path")] = ()
    """Folders with plain LoRA adapters of the model: the last goes on training, those before it work and stay as they are."""
    anew: Annotated[bool, Flat("create_new_adapter")] = False
    """Whether all of them stay as they are, and a new one trains beside them."""

    def uniform(self) -> bool:
        """No name singles out a layer by its number, and no file holds all of them."""
        return super().uniform() and not self.adapters


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

    Proof: the scaling is alpha / sqrt(rank) in every layer (`test_rslora_is_scaled_by_the_root_of_the_rank`); the output begins
    as the base's, and peft computes the same from the files
    (`test_it_begins_as_the_base_leaves_it_and_is_for_peft_what_it_is_here`); merged = unmerged, and opened again it is the same
    to the bit (`test_merged_it_computes_the_same_and_opened_again_too`).
    """

    target: ClassVar[str] = "gym_adapters.lora:RsLora"

    alpha: Annotated[PositiveFloat | None, Flat("lora_alpha")] = None
    """The update is scaled by alpha / sqrt(rank); without it alpha is twice the rank."""


class DoRA(LowRankTuner):
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

    target: ClassVar[str] = "gym_adapters.lora:Dora"


class AdaLoRA(LowRankTuner):
    """LoRA with orthogonal directions, of which the least important ones are let go while it trains.

        y = W x + scaling B diag(E) A x           scaling = alpha / (rank + 1e-5)
        loss + orthogonality * mean of |A A^T - 1| and |B^T B - 1| over all layers
        s(w) = I(w) U(w)                          I: running mean of |w g|, g the gradient of w; U: of ||w g| - I|
        S_i = s(E_i) + mean s(A_i) + mean s(B_i)  how important row i of A, with column i of B, is
        b(t) = target_rank + (rank - target_rank) (1 - (t - warmup) / (T - final - warmup))^3

    W `[out, in]` stays; A `[rank, in]` and B `[out, rank]` begin normal, of deviation 0.02, and E `[rank]` as zeros. After step
    `warmup` of T, and every `every` steps, E_i of the least important directions of all layers together becomes zero, so that
    b(t) a layer are left on average; in the last `final` steps the same ones stay. In the paper B, E, A are P, Lambda, Q.

    Trains: `rank (out + in + 1)` numbers for a layer `[out, in]`; E of what is gone stays zero.

    Code: peft's layers and allocation of ranks; penalty, state and files ours: peft adds the penalty only to a loss that its
    own wrapper computes, and drops what a resumed run needs.

    Differs: the paper adds up squared norms; its code and peft take the mean of the norms themselves, as here.

    On the disk: what is left, as peft loads it, and in adalora.safetensors all there is, from which Gym goes on. Merges; left
    out, it leaves the base to the bit, so the base is its own reference.

    Not with: `fsdp`, for it weighs whole gradients; optimizers that leave none, as in the backward pass; other adapters beside
    it; a run too short for `warmup` and `final`; GPT-2's layers; quantized weights, where it is merged.

    Proof: the ranks left are those asked for (`test_the_ranks_left_are_those_asked_for`); the penalty in NumPy
    (`test_the_penalty_is_the_mean_distance_from_orthogonal`); it goes on to the bit from before, while and after ranks go
    (`test_it_goes_on_to_the_bit_from_any_step`); peft loads what is left (`test_peft_loads_what_is_left`); without gradients it
    is refused (`test_adalora_needs_the_gradients`).
    """

    target: ClassVar[str] = "gym_adapters.adalora:Adalora"

    rank: Annotated[PositiveInt, Flat("lora_rank")] = 12
    """Rank of every layer at first."""
    target_rank: PositiveInt = 8
    """Mean rank in the end."""
    warmup: Steps = 0.1
    """Steps before the first rank goes: a number, or below 1 a share of all."""
    final: Steps = 0.3
    """Steps after the last one went."""
    every: PositiveInt = 1
    """Steps between two times that ranks go."""
    beta1: Decay = 0.85
    """Decay of the running mean of how sensitive the loss is to a weight."""
    beta2: Decay = 0.85
    """Decay of the running mean of how much that varies."""
    orthogonality: Annotated[float, Field(ge=0)] = 0.5
    """Weight of the penalty on directions that are not orthogonal."""

    @model_validator(mode="after")
    def _fewer(self) -> Self:
        if self.target_rank >= self.rank:
            raise ValueError(f"target_rank must be below the rank of {self.rank}")
        return self

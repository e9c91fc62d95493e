"""Low-rank updates with more than linear layers to them: sparse attention in training, and the experts of a mixture."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import PositiveFloat, PositiveInt

from gym_adapters.config.lora import LoRA
from gym_adapters.config.tuner import Names, Tuner
from gym_core import Flat


class LongLoRA(LoRA):
    """Trains on long texts with attention in groups (shifted sparse attention), LoRA, and the embeddings and norms whole.

        y = W x + scaling B A x                   scaling = alpha / rank
        size = ceil(length / groups)              of a sample
        group(t) = floor(t / size)                for the first half of the heads
        group(t) = floor((t - floor(size / 2)) / size)          for the other half, where groups > 1
        t attends to s                            where s <= t and group(s) = group(t), in training alone

    W `[out, in]` stays; A `[rank, in]` begins uniform within 1 / sqrt(in) of zero, B `[out, rank]` as zeros, and both train,
    with embeddings and norms whole (section 3). Outside of training every token sees all before it. The longer context itself
    is made by the model's RoPE options.

    Trains: `rank (out + in)` numbers for a layer `[out, in]`, the embeddings and every norm; `extra` names others.

    Code: ours, over peft's LoRA; peft has no such attention.

    Differs: in the code of the paper the shifted half wraps around, so that the first tokens see the last; here the half part
    at either end is a group by itself. Samples have any length. Of tied embeddings the input side trains, and the merged model
    has two of them.

    On the disk: a LoRA with embeddings and norms, which peft loads. Merges; left out while it does not train, it leaves the
    base.

    Not with: samples that share a prompt, as in preference and group algorithms; padding masks (padding counts as text in rows
    that are padded because `model.attention` is set); models that attend in a way of their own.

    Proof: it is the definition, as a mask (`test_it_is_the_definition`); one group is full attention
    (`test_one_group_is_full_attention`); no token sees a later one, or another sample
    (`test_no_token_sees_a_later_one_or_another_sample`); packed samples are texts by themselves
    (`test_in_training_packed_rows_are_texts_by_themselves`); merged, it attends to everything
    (`test_merged_it_attends_to_everything_even_in_training`).
    """

    target: ClassVar[str] = "gym_adapters.longlora:LongLora"

    groups: PositiveInt = 4
    """Parts of a sample within which it attends in training; 1 is full attention, which is what inference does in any case."""
    extra: Annotated[Names, Flat("additional_target")] = "all"
    """Modules trained whole beside the adapter and saved in it; `all` is the embeddings and every norm."""


class ExpertLoRA(Tuner):
    """Trains a low-rank update of each expert of a mixture, whose layers hold the matrices of all experts in one tensor.

        W_e + scaling B_e A_e                     for each expert e, scaling = alpha / rank

    The tensor W `[experts, out, in]`, in which transformers keeps the matrices of all experts of a layer, stays as it is; A_e
    `[rank, in]` and B_e `[out, rank]` train. Every A_e begins uniform within 1 / sqrt(in) of zero, every B_e as zeros.
    `parameters` names some tensors (`experts.down_proj`, or `layers.3.mlp.experts.down_proj` for those of one layer), `modules`
    linear layers beside them, which are adapted as by `lora`.

    Trains: `experts rank (out + in)` numbers for a tensor `[experts, out, in]`.

    Code: peft's for first values, files and merging; ours runs the experts, for peft adds the update to all of them before
    every pass, which takes their size in memory again, and in bf16 loses what is smaller than the rounding of the weights.

    Differs: routers and linear layers are left alone unless `modules` names them. Experts that transformers does not run by its
    interface for them (Llama 4, JetMoe) run in peft's way. There is no dropout.

    On the disk: the A of all experts in one matrix `[experts rank, in]`, and their B in one `[out, rank experts]`, by peft's
    names, which peft loads. Merges; left out, it leaves the base to the bit, so the base is its own reference.

    Not with: models without experts in tensors of their own.

    Proof: every expert has its own update, by the formula (`test_each_expert_has_its_own_update`); values and gradients are
    those of whole matrices in float64, in five families (`test_value_and_gradients_are_those_of_whole_matrices`); bf16 does not
    hide small updates (`test_over_bf16_an_update_smaller_than_the_rounding_of_weights_is_seen`); nothing of the size of all
    experts is kept (`test_nothing_as_large_as_all_experts_is_kept`); unchanged at first, merged = unmerged, and the same from
    the files, in peft too (`test_unchanged_merged_saved_and_restored`); packed and recomputed it has the same gradients
    (`test_packed_and_checkpointed`); a convolution is no mixture (`test_a_convolution_is_no_mixture`); what is not there is
    named (`test_what_is_not_there_is_named`).
    """

    target: ClassVar[str] = "gym_adapters.experts:Experts"
    mixtures: ClassVar[bool] = True

    rank: Annotated[PositiveInt, Flat("lora_rank")] = 8
    """Rank of the update of one expert."""
    alpha: Annotated[PositiveFloat | None, Flat("lora_alpha")] = None
    """The update is scaled by alpha / rank; without it alpha is twice the rank."""
    parameters: Names = "all"
    """Tensors of experts to adapt, such as `experts.down_proj`; `all` is every one."""
    modules: Names = ()
    """Linear layers to adapt beside them, such as `q_proj,v_proj`; none by default, `all` is every one but the head."""

    def uniform(self) -> bool:
        """No name singles out a layer by its number."""
        return super().uniform() and not any(letter.isdigit() for name in self.parameters for letter in name)

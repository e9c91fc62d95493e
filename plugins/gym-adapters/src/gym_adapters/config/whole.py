"""Training weights of the model itself: all of them, or some."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt, field_validator

from gym_adapters.config.tuner import Names
from gym_core import Adapter, Flat


class Full(Adapter):
    """Trains every weight of the model.

    Trains: every weight, in fp32 whatever the precision it is stored in; tied weights once. This is also what a recipe without
    an adapter does.

    Code: ours.

    On the disk: a plain model, which transformers loads, each weight in the precision that it came in. It is no adapter: there
    is nothing to merge, and since it changes the base, a reference is a second model.

    Not with: quantized weights, which cannot be trained.

    Proof: every weight changes, and is in the state (`test_full_trains_everything`); quantized ones are refused by name
    (`test_quantized_weights_cannot_be_trained`); a run trains as many as planned, and goes on from a crash to the same bits
    (`test_it_is_planned_trained_and_continued`); `gym explain` says how many train (`test_explain_says_how_much_trains`).
    """

    target: ClassVar[str] = "gym_torch.model.adapted:Full"

    def uniform(self) -> bool:
        """Every layer trains."""
        return True


class Freeze(Adapter):
    """Trains some layers of the model and freezes the rest.

        layers: N                                 the last N layers train; -N: the first N
        layers: N, spread: true                   the last of each of N equal parts

    Trains: the weights of `modules` in these layers, and of `extra` outside of them, in fp32; everything else stays as it is,
    in its own precision. So below fp32 it needs `train: {precision: bf16}`.

    Code: ours.

    Differs: LLaMA-Factory's `use_llama_pro` with `finetuning_type: freeze` is `spread`: it goes on with a model into which
    `llama_pro`, or their script, has put blocks.

    On the disk: a plain model, which transformers loads, each weight in the precision that it came in. It is no adapter: there
    is nothing to merge, and since it changes the base, a reference is a second model.

    Not with: more layers than there are, parts that are not equal, names that are not there; quantized weights among those that
    train.

    Proof: the last or first layers change, and no others (`test_last_or_first_layers`), or the modules named
    (`test_some_modules_and_some_outside`); saved and restored it has the same bits (`test_saved_restored_and_merged`); what is
    frozen keeps its precision (`test_bf16_is_kept_where_frozen_and_trains_under_autocast`); blocks of LLaMA-Pro go on training
    (`test_freeze_goes_on_training_the_new_blocks`).
    """

    target: ClassVar[str] = "gym_adapters.freeze:Freeze"

    layers: Annotated[int, Flat("freeze_trainable_layers")] = 2
    """How many layers train: the last ones, or the first ones where it is negative."""
    modules: Annotated[Names, Flat("freeze_trainable_modules")] = "all"
    """Modules of those layers that train, such as `mlp,self_attn`, or `all`."""
    extra: Annotated[Names, Flat("freeze_extra_modules")] = ()
    """Modules outside the layers that train too, such as `embed_tokens`."""

    spread: Annotated[bool, Flat("use_llama_pro")] = False
    """Whether they are the last of as many equal parts of the model, as the blocks are that LLaMA-Pro put in, not its end."""

    @field_validator("layers")
    @classmethod
    def _some_layers(cls, layers: int) -> int:
        if layers == 0:
            raise ValueError("0 layers leave nothing to train")
        return layers


class LLaMAPro(Adapter):
    """Puts new blocks between those of the model, which change nothing at first, and trains them alone: a larger model.

        h = x + Wo attention(norm(x))
        y = h + Wd feed_forward(norm(h))          a block; in a new one Wo = 0 and Wd = 0 at first, so y = x

    After each of `blocks` equal parts of the model comes a copy of the last block there, with zeros where it writes to the
    residual stream, weights and biases (section 3.2). The model itself stays as it is.

    Trains: every weight of the new blocks, in fp32; nothing is drawn at random.

    Code: ours; peft has nothing of the kind. Lists of the configuration with an entry for each layer are laid out anew, and
    each layer has a cache of its own.

    On the disk: a plain model with more layers, which transformers loads. `freeze: {layers: 8, spread: true}` goes on training
    eight such blocks. Left out, it leaves the base to the bit, so the base is its own reference.

    Not with: a number of blocks that does not divide the layers; blocks whose projections have no name known here (o_proj,
    down_proj, c_proj, ...).

    Proof: the output begins as the base's to the bit, and the new blocks train alone
    (`test_new_blocks_train_alone_and_the_output_is_unchanged`); what is saved is a larger plain model
    (`test_what_is_saved_is_a_larger_plain_model`); it is so in every family, packed and decoded (`test_every_family`); `freeze`
    goes on with it (`test_freeze_goes_on_training_the_new_blocks`); numbers that do not divide are refused
    (`test_numbers_that_do_not_divide_are_refused`).
    """

    target: ClassVar[str] = "gym_adapters.llama_pro:LlamaPro"

    blocks: Annotated[PositiveInt, Field(examples=[1])] = 8
    """Number of new blocks; must divide the number of layers: one comes after each equal part of the model."""

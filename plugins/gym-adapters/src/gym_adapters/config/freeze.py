"""Partial training: some layers of the model, the rest is frozen."""

from __future__ import annotations

from typing import ClassVar

from pydantic import field_validator

from gym_adapters.config.base import Names, SomeNames
from gym_torch.kinds import Adapter


class Freeze(Adapter):
    """Trains some layers of the model and freezes the rest.

        trainable_layers: N                       the last N layers train; -N: the first N
        trainable_layers: N, spread: true         the last of each of N equal parts

    Trains: the weights of `trainable_modules` in these layers, and of `extra_modules` outside of them, in fp32; everything else
    stays as it is, in its own precision. So below fp32 it needs `train: {precision: bf16}`.

    Code: ours.

    Differs: LLaMA-Factory's `use_llama_pro` with `finetuning_type: freeze` is `spread`: it goes on with a model into which
    `llama_pro`, or their script, has put blocks.

    On the disk: a plain model, which transformers loads, each weight in the precision that it came in. It is no adapter: there
    is nothing to merge, and since it changes the base, a reference is a second model.

    Not with: more layers than there are, parts that are not equal, names that are not there; quantized weights among those that
    train.
    """

    target: ClassVar[str] = "gym_adapters.tuners.freeze:FreezeAdapter"
    saves_model: ClassVar[bool] = True

    trainable_layers: int = 2
    """How many layers train: the last ones, or the first ones where it is negative."""
    trainable_modules: SomeNames = "all"
    """Modules of those layers that train, such as `mlp,self_attn`, or `all`."""
    extra_modules: Names = ()
    """Modules outside the layers that train too, such as `embed_tokens`."""

    spread: bool = False
    """Whether they are the last of as many equal parts of the model, as the blocks are that LLaMA-Pro put in, not its end."""

    @field_validator("trainable_layers")
    @classmethod
    def _some_layers(cls, layers: int) -> int:
        if layers == 0:
            raise ValueError("0 layers leave nothing to train")
        return layers

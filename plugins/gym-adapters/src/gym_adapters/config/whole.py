"""Training weights of the model itself: all of them, or some."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt, field_validator

from gym_adapters.config.tuner import Names
from gym_core import Adapter, Flat


class Full(Adapter):
    """Trains every weight of the model."""

    target: ClassVar[str] = "gym_torch.adapted:Full"

    def uniform(self) -> bool:
        """Every layer trains."""
        return True


class Freeze(Adapter):
    """Trains some layers of the model and freezes the rest."""

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
    """Puts new blocks between those of the model, which change nothing at first, and trains them alone: a larger model."""

    target: ClassVar[str] = "gym_adapters.llama_pro:LlamaPro"
    paper: ClassVar[str] = "arXiv:2401.02415"

    blocks: Annotated[PositiveInt, Field(examples=[1])] = 8
    """Number of new blocks; must divide the number of layers: one comes after each equal part of the model."""

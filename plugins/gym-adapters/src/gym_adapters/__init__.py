"""gym-adapters: which weights of a model train. These are the options; peft is imported when one is built."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from gym_core import Adapter, Flat

__version__ = "0.1.0"
__all__ = ["Freeze", "Full", "LoRA"]

Names = str | tuple[str, ...]  #: a list, or one string with commas between


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

    @field_validator("layers")
    @classmethod
    def _some_layers(cls, layers: int) -> int:
        if layers == 0:
            raise ValueError("0 layers leave nothing to train")
        return layers


class LoRA(Adapter):
    """Trains a low-rank update of each linear layer, and leaves the model itself alone."""

    target: ClassVar[str] = "gym_adapters.lora:Lora"
    paper: ClassVar[str] = "arXiv:2106.09685"

    rank: Annotated[PositiveInt, Flat("lora_rank")] = 8
    """Rank of the update."""
    alpha: Annotated[PositiveFloat | None, Flat("lora_alpha")] = None
    """The update is scaled by alpha / rank; without it alpha is twice the rank."""
    dropout: Annotated[float, Field(ge=0, lt=1), Flat("lora_dropout")] = 0.0
    """Share of a layer's inputs that the update does not see in a training step."""
    modules: Annotated[Names, Flat("lora_target")] = "all"
    """Linear layers to adapt, such as `q_proj,v_proj`; `all` is every one but the language-model head."""
    extra: Annotated[Names, Flat("additional_target")] = ()
    """Modules trained whole beside the adapter and saved in it, such as `embed_tokens`."""

    def uniform(self) -> bool:
        """No name singles out a layer by its number."""
        return not any(letter.isdigit() for name in (*self.modules, *self.extra) for letter in name)

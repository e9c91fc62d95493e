"""Low-rank updates."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PositiveFloat, PositiveInt

from gym_adapters.config.tuner import Names, Tuner
from gym_core import Flat


class LoRA(Tuner):
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

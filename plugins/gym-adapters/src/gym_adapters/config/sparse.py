"""Low-rank updates with more than linear layers to them: sparse attention in training, and the experts of a mixture."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import PositiveFloat, PositiveInt

from gym_adapters.config.lora import LoRA
from gym_adapters.config.tuner import Names, Tuner
from gym_core import Flat


class LongLoRA(LoRA):
    """Trains on long texts with attention in groups (shifted sparse attention), LoRA, and the embeddings and norms whole."""

    target: ClassVar[str] = "gym_adapters.longlora:LongLora"
    paper: ClassVar[str] = "arXiv:2309.12307"

    groups: PositiveInt = 4
    """Parts of a sample within which it attends in training; 1 is full attention, which is what inference does in any case."""
    extra: Annotated[Names, Flat("additional_target")] = "all"
    """Modules trained whole beside the adapter and saved in it; `all` is the embeddings and every norm."""


class ExpertLoRA(Tuner):
    """Trains a low-rank update of each expert of a mixture, whose layers hold the matrices of all experts in one tensor."""

    target: ClassVar[str] = "gym_adapters.experts:Experts"
    paper: ClassVar[str] = "arXiv:2106.09685"
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

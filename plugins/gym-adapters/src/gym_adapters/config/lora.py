"""Low-rank updates."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from gym_adapters.config.tuner import Names, Tuner
from gym_core import Flat

Decay = Annotated[float, Field(gt=0, lt=1)]
Steps = Annotated[float, Field(ge=0)]  #: a number of steps, or below 1 a share of all


def _nothing(value: Any) -> None:
    """Accept a key that has no meaning here."""


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
    """Linear layers to adapt, or what they are in, such as `q_proj,mlp`; `all` is every one but the language-model head."""
    adapters: Annotated[Names, Flat("adapter_name_or_path")] = ()
    """Folders with plain LoRA adapters of the model: the last goes on training, those before it work and stay as they are."""
    anew: Annotated[bool, Flat("create_new_adapter")] = False
    """Whether all of them stay as they are, and a new one trains beside them."""

    stacks: ClassVar[bool] = True
    """Whether it can stand beside other adapters."""

    def uniform(self) -> bool:
        """No name singles out a layer by its number, and no file holds all of them."""
        return super().uniform() and not self.adapters

    @model_validator(mode="after")
    def _beside(self) -> Self:
        if self.adapters and not self.stacks:
            raise ValueError(f"{type(self).__name__} cannot stand beside other adapters; merge them with `gym export`")
        return self


class RsLoRA(LoRA):
    """LoRA scaled by alpha / sqrt(rank), so that a higher rank does not learn more slowly."""

    target: ClassVar[str] = "gym_adapters.lora:RsLora"
    paper: ClassVar[str] = "arXiv:2312.03732"


class DoRA(LoRA):
    """LoRA for the direction of each row of a weight, and a length of the row that trains apart from it."""

    target: ClassVar[str] = "gym_adapters.lora:Dora"
    paper: ClassVar[str] = "arXiv:2402.09353"
    stacks: ClassVar[bool] = False


class PiSSA(LoRA):
    """LoRA that begins as the leading part of each weight, and trains that."""

    target: ClassVar[str] = "gym_adapters.started:Pissa"
    paper: ClassVar[str] = "arXiv:2404.02948"

    iterations: Annotated[int, Flat("pissa_iter"), Flat("pissa_convert", convert=_nothing)] = 16
    """Power iterations that find the leading part; -1 decomposes the weight exactly, which takes longer."""

    @field_validator("iterations")
    @classmethod
    def _some(cls, iterations: int) -> int:
        if iterations < 1 and iterations != -1:
            raise ValueError("takes at least 1 iteration, or -1 for an exact decomposition")
        return iterations


class OLoRA(LoRA):
    """LoRA that begins as the leading part of each weight's QR decomposition, so with orthonormal B."""

    target: ClassVar[str] = "gym_adapters.started:Olora"
    paper: ClassVar[str] = "arXiv:2406.01775"


class LoRAGA(LoRA):
    """LoRA that begins along the gradient of the first step, scaled by alpha / sqrt(rank)."""

    target: ClassVar[str] = "gym_adapters.started:LoraGA"
    paper: ClassVar[str] = "arXiv:2407.05000"

    gamma: PositiveFloat = 16.0
    """A and B begin with rows and columns of length `out^(1/4) / sqrt(gamma)`."""


class EVA(LoRA):
    """LoRA whose A begins as the directions in which a layer's inputs vary most in the first step."""

    target: ClassVar[str] = "gym_adapters.eva:Eva"
    paper: ClassVar[str] = "arXiv:2410.07170"


class LoftQ(LoRA):
    """LoRA over weights rounded to a few bits, which begins as the best correction of the rounding."""

    target: ClassVar[str] = "gym_adapters.loftq:Loftq"
    paper: ClassVar[str] = "arXiv:2310.08659"
    stacks: ClassVar[bool] = False
    starts_unchanged: ClassVar[bool] = False

    bits: Literal[2, 3, 4] = 4
    """Bits of a weight: NormalFloat, with a scale for each block."""
    block: PositiveInt = 64
    """Weights that share a scale."""
    iterations: PositiveInt = 5
    """Turns of rounding and correcting; the best is taken."""


class AdaLoRA(LoRA):
    """LoRA with orthogonal directions, of which the least important ones are let go while it trains."""

    target: ClassVar[str] = "gym_adapters.adalora:Adalora"
    paper: ClassVar[str] = "arXiv:2303.10512"
    stacks: ClassVar[bool] = False

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

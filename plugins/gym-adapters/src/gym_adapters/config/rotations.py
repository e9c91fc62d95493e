"""Rotations of what goes into a linear layer: they keep the angles between its neurons."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt, model_validator

from gym_adapters.config.tuner import Names, Tuner
from gym_core import Adapter, Flat


class OFT(Tuner):
    """Trains a rotation of the inputs of each linear layer, block by block (OFTv2: the inputs are turned, not the weights)."""

    target: ClassVar[str] = "gym_adapters.rotations:Oft"
    paper: ClassVar[str] = "arXiv:2506.19847"

    block: Annotated[
        PositiveInt | None, Field(examples=[8]), Flat("oft_block_size", convert=lambda size: size or None)
    ] = None
    """Inputs that are rotated together, 32 by default; must divide the inputs of every adapted layer."""
    blocks: Annotated[PositiveInt | None, Flat("oft_rank", convert=lambda count: count or None)] = None
    """Number of blocks of each layer, in place of their size."""
    exact: bool = False
    """Whether rotations are exact, by solving a system, rather than five terms of a series: right where they become large."""
    modules: Annotated[Names, Flat("oft_target"), Flat("lora_target")] = "all"
    """Linear layers to adapt, or what they are in, such as `q_proj,mlp`; `all` is every one but the language-model head."""

    @model_validator(mode="after")
    def _one_of_both(self) -> OFT:
        if self.block and self.blocks:
            raise ValueError("set block or blocks, not both")
        return self


class BOFT(Adapter):
    """Trains a rotation of the inputs of each linear layer as a product of sparse ones, and a scale of each output."""

    target: ClassVar[str] = "gym_adapters.butterfly:Boft"
    paper: ClassVar[str] = "arXiv:2311.06243"

    block: Annotated[PositiveInt, Field(multiple_of=2)] = 8
    """Inputs that one factor rotates together."""
    factors: PositiveInt = 2
    """Number of butterfly factors; block * 2^(factors - 1) must divide the inputs of every adapted layer."""
    modules: Names = "all"
    """Linear layers to adapt, or what they are in, such as `q_proj,mlp`; `all` is every one but the language-model head."""

    def uniform(self) -> bool:
        """No name singles out a layer by its number."""
        return not any(letter.isdigit() for name in self.modules for letter in name)

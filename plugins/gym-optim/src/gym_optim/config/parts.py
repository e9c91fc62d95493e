"""Optimizers that work on a part of the model at a time, and those for LoRA adapters, as a recipe sees them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from gym_core import Flat
from gym_optim.config.base import AdamOptions, Groups
from gym_optim.roles import block_of


def _whole_layers(mode: Any) -> None:
    """LLaMA-Factory has a second method under the same name."""
    if mode != "layer":
        raise ValueError(f"only whole layers take turns here, not `{mode}`: leave it out, or set `use_badam: false`")


def _nothing(value: Any) -> None:
    """Accept a key that has no meaning here."""


class LISA(AdamOptions):
    """AdamW on what stands outside the layers and on a few layers, drawn anew every so many steps."""

    target: ClassVar[str] = "gym_optim.blockwise:LISA"
    paper: ClassVar[str] = "arXiv:2403.17919"

    layers: PositiveInt = 2
    """How many layers work at a time."""
    interval: PositiveInt = 20
    """Steps between two draws."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the draws."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of two moments for what stands outside and for as many of the largest layers as work."""
        sizes = _sizes(parameters)
        return sizes.pop("", 0) + sum(sorted(sizes.values())[-self.layers :])

    def held_gradients(self, parameters: Groups) -> int | None:
        """Return the bytes of the gradients of what works at a time: half of its moments."""
        return self.declared_bytes(parameters) // 2


class BAdam(AdamOptions):
    """AdamW on one layer after another."""

    target: ClassVar[str] = "gym_optim.blockwise:BAdam"
    paper: ClassVar[str] = "arXiv:2404.02827"

    interval: Annotated[PositiveInt, Flat("badam_switch_interval"), Flat("badam_verbose", convert=_nothing)] = 50
    """Steps for which a layer works."""
    order: Annotated[
        Literal["ascending", "descending", "random", "fixed"],
        Flat("badam_switch_mode"),
        Flat("badam_mode", convert=_whole_layers),
    ] = "ascending"
    """In which layers take turns; what stands outside the layers comes last, and `fixed` stays with one."""
    start: Annotated[int | None, Field(ge=0), Flat("badam_start_block")] = None
    """Number of the layer to begin with; by default the first, or what comes last where the order is descending."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the random order."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of two moments for the largest block."""
        return max(_sizes(parameters).values())

    def held_gradients(self, parameters: Groups) -> int | None:
        """Return the bytes of the gradients of what works at a time: half of its moments."""
        return self.declared_bytes(parameters) // 2


class LoRAPlus(AdamOptions):
    """AdamW with a higher learning rate for the B of each LoRA pair than for its A."""

    target: ClassVar[str] = "gym_optim.lora:lora_plus"
    numberwise: ClassVar[bool] = True
    general: ClassVar[bool] = False
    paper: ClassVar[str] = "arXiv:2402.12354"

    ratio: Annotated[PositiveFloat, Flat("loraplus_lr_ratio", convert=float)] = 16.0
    """Learning rate of B over that of A."""
    embedding_lr: Annotated[PositiveFloat, Flat("loraplus_lr_embedding", convert=float)] = 1e-6
    """Learning rate of the adapters of embeddings."""


class LoRAPro(AdamOptions):
    """A and B of each LoRA pair move so that their product moves as the full matrix would; its moments are full size."""

    target: ClassVar[str] = "gym_optim.lora:LoRAPro"
    general: ClassVar[bool] = False
    paper: ClassVar[str] = "arXiv:2407.18242"

    scaling: PositiveFloat | None = None
    """What the adapter multiplies B A by; by default as it says itself, such as alpha / rank."""
    delta: PositiveFloat = 1e-8
    """Added to the diagonals of the products of A and of B with themselves, which are singular at the start."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of two moments of each matrix that a pair makes, and of two for every other parameter."""
        shapes = {name: shape for group in parameters for name, shape in group["params"]}
        pairs = {name: name.replace("lora_A", "lora_B") for name in shapes if "lora_A" in name.split(".")}
        paired = {*pairs, *pairs.values()}
        whole: Sequence[int] = [shapes[b][0] * shapes[a][1] for a, b in pairs.items()]
        return 8 * (sum(whole) + sum(prod(shape) for name, shape in shapes.items() if name not in paired))


def _sizes(parameters: Groups) -> dict[str, int]:
    """Return the bytes of two fp32 moments by layer; "" is what stands outside."""
    sizes: dict[str, int] = {}
    for group in parameters:
        for name, shape in group["params"]:
            sizes[block_of(name)] = sizes.get(block_of(name), 0) + 8 * prod(shape)
    return sizes

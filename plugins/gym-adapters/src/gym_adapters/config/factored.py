"""Updates that are a product other than LoRA's: Hadamard, Kronecker, or of random matrices."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from gym_adapters.config.tuner import Tuner


class LoHa(Tuner):
    """Trains an update that is the element-wise product of two low-rank ones, so that its rank is up to the square of theirs."""

    target: ClassVar[str] = "gym_adapters.factored:Loha"
    paper: ClassVar[str] = "arXiv:2108.06098"

    rank: PositiveInt = 8
    """Rank of each of the two factors."""
    alpha: PositiveInt | None = None
    """The update is scaled by alpha / rank; without it alpha is the rank."""


class LoKr(Tuner):
    """Trains an update that is a Kronecker product of a small matrix and a low-rank one."""

    target: ClassVar[str] = "gym_adapters.factored:Lokr"
    paper: ClassVar[str] = "arXiv:2309.14859"

    rank: PositiveInt = 8
    """Rank of the second matrix, where it is large enough for that; a small one is trained whole."""
    alpha: PositiveInt | None = None
    """The update is scaled by alpha / rank; without it alpha is the rank."""
    factor: int = -1
    """Largest size of a side of the first matrix; -1 divides a side as near to its square root as it can be divided."""
    both: bool = False
    """Whether the first matrix is of this rank too, where it is large enough."""

    @field_validator("factor")
    @classmethod
    def _a_size(cls, factor: int) -> int:
        if factor < 1 and factor != -1:
            raise ValueError("a size is at least 1; -1 lets the shape decide")
        return factor


class VeRA(Tuner):
    """Trains two vectors for each linear layer, which scale random matrices that all layers share."""

    target: ClassVar[str] = "gym_adapters.factored:Vera"
    paper: ClassVar[str] = "arXiv:2310.11454"

    rank: PositiveInt = 256
    """Rank of the random matrices; each layer trains this many numbers, and one for each of its outputs."""
    scale: PositiveFloat = 0.1
    """First value of the vector between the two matrices; the one after them is zero at first."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of a layer's inputs that the update does not see in a training step."""
    draw: Annotated[int, Field(ge=0)] = 0
    """Seed of the random matrices, which are no part of what trains: another one is another adapter."""

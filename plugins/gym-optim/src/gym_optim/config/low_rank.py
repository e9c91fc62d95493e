"""Optimizers whose moments are those of a projected gradient, as a recipe sees them."""

from __future__ import annotations

from math import prod
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from gym_core import Flat
from gym_optim.config.base import AdamOptions, Alone, Groups, Shape, coded, each, only
from gym_optim.roles import Names, is_matrix, is_named

Side = Literal["short", "long", "left", "right"]
_SIDES = {"std": "short", "reverse_std": "long"}


class _Projected(AdamOptions, Alone):
    """The options of optimizers that project a gradient onto its leading singular vectors."""

    rank: PositiveInt = 128
    """Dimensions of the projected gradient; a quarter of the model's is usual."""
    interval: PositiveInt = 200
    """Steps between two projections."""
    scale: PositiveFloat = 0.25
    """Of the update of a projected matrix."""
    side: Side = "short"
    """Side of the matrix that is projected."""
    modules: Names = "all"
    """Matrices inside the model that are projected, such as `q_proj,v_proj`, or `all`."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of a projected matrix's basis and moments, and of two moments for the rest."""
        return each(
            parameters,
            lambda group, name, shape: (
                self.projected(shape) if is_matrix(group, shape) and is_named(name, self.modules) else 8 * prod(shape)
            ),
        )

    def projected(self, shape: Shape) -> int:
        """Return the bytes of a basis [dim, rank] and two moments [rank, other]."""
        rank, dim = self.projection(shape)
        return 4 * rank * dim + 8 * rank * (prod(shape) // dim)

    def projection(self, shape: Shape) -> tuple[int, int]:
        """Return the rank of a projection and the length of the side that is projected."""
        dim = {"left": shape[0], "right": shape[1], "short": min(shape), "long": max(shape)}[self.side]
        return min(self.rank, *shape), dim


class GaLore(_Projected):
    """AdamW on the leading singular vectors of each matrix's gradient."""

    target: ClassVar[str] = "gym_optim.galore:GaLore"
    paper: ClassVar[str] = "arXiv:2403.03507"

    rank: Annotated[PositiveInt, Flat("galore_rank", default=16)] = 128
    """Dimensions of the projected gradient; a quarter of the model's is usual."""
    interval: Annotated[PositiveInt, Flat("galore_update_interval")] = 200
    """Steps between two projections."""
    scale: Annotated[PositiveFloat, Flat("galore_scale", default=2.0)] = 0.25
    """Of the update of a projected matrix."""
    side: Annotated[Side, Flat("galore_proj_type", convert=_SIDES)] = "short"
    """Side of the matrix that is projected."""
    modules: Annotated[Names, Flat("galore_target")] = "all"
    """Matrices inside the model that are projected, such as `q_proj,v_proj`, or `all`."""
    in_backward: Annotated[bool, Flat("galore_layerwise")] = False
    """Update each parameter during the backward pass, so that no more than one gradient is held; without accumulation,
    clipping and further processes."""


class Fira(_Projected):
    """GaLore, with what the projection leaves out added at the scale of what it keeps."""

    target: ClassVar[str] = "gym_optim.fira:Fira"
    paper: ClassVar[str] = "arXiv:2410.01623"


class QGaLore(_Projected):
    """GaLore with a 4-bit basis, 8-bit moments, and rarer projections where they hardly change."""

    target: ClassVar[str] = "gym_optim.q_galore:QGaLore"
    paper: ClassVar[str] = "arXiv:2407.08296"

    alike: Annotated[float, Field(ge=0, le=1)] = 0.4
    """Mean cosine between the first vectors of successive bases from which on the interval doubles."""
    remembered: PositiveInt = 5
    """Pairs of bases whose cosines are averaged."""

    def projected(self, shape: Shape) -> int:
        """Return the bytes of the codes and scales of basis and moments."""
        rank, dim = self.projection(shape)
        return coded(rank * dim, bits=4) + 2 * coded(rank * (prod(shape) // dim))


class APOLLO(AdamOptions, Alone):
    """The gradient itself, each channel scaled by what Adam does to a random projection of it."""

    target: ClassVar[str] = "gym_optim.apollo:APOLLO"
    paper: ClassVar[str] = "arXiv:2412.05270"

    rank: Annotated[PositiveInt, Flat("apollo_rank", default=16)] = 256
    """Dimensions of the projected gradient; a quarter of the model's is usual."""
    interval: Annotated[PositiveInt, Flat("apollo_update_interval")] = 200
    """Steps between two projections."""
    scale: Annotated[PositiveFloat, Flat("apollo_scale", default=32.0)] = 1.0
    """The update is multiplied by its square root."""
    per: Annotated[
        Literal["channel", "tensor"],
        Flat("apollo_scale_type"),
        Flat("apollo_proj", convert=only("random")),
        Flat("apollo_proj_type", convert=only("std")),
        Flat("apollo_scale_front", convert={True: None, False: None}),  # the limit is on a ratio of norms
    ] = "channel"
    """Whether each channel along the long side of a matrix is scaled by itself, or the whole matrix as one."""
    modules: Annotated[Names, Flat("apollo_target")] = "all"
    """Matrices inside the model that are projected, such as `q_proj,v_proj`, or `all`."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the projections."""
    epsilon: Annotated[float, Field(gt=0), Flat("adam_epsilon", convert=float, default=1e-8)] = 1e-6
    """Added to the denominator."""
    in_backward: Annotated[bool, Flat("apollo_layerwise")] = False
    """Update each parameter during the backward pass, so that no more than one gradient is held; without accumulation,
    clipping and further processes."""

    def declared_bytes(self, parameters: Groups) -> int:
        """Return the bytes of two moments [rank, long side] of a projected matrix, and of full ones for the rest."""
        return each(
            parameters,
            lambda group, name, shape: (
                8 * min(self.rank, *shape) * max(shape)
                if is_matrix(group, shape) and is_named(name, self.modules)
                else 8 * prod(shape)
            ),
        )


class APOLLOMini(APOLLO):
    """APOLLO of rank 1 with one factor for a whole matrix: hardly more state than gradient descent."""

    rank: PositiveInt = 1
    """Dimensions of the projected gradient."""
    scale: PositiveFloat = 128.0
    """The update is multiplied by its square root."""
    per: Literal["channel", "tensor"] = "tensor"
    """Whether each channel along the long side of a matrix is scaled by itself, or the whole matrix as one."""

"""The schedules of the learning rate as a recipe sees them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from gym_optim.kinds import Scheduler


class Constant(Scheduler):
    """The peak all along, after warm-up."""

    target: ClassVar[str] = "gym_optim.schedules:constant"
    ends_at: ClassVar[float | None] = 1.0


class Linear(Scheduler):
    """Straight down to zero."""

    target: ClassVar[str] = "gym_optim.schedules:linear"
    ends_at: ClassVar[float | None] = 0.0


class Polynomial(Scheduler):
    """A power of the share of the steps that is left."""

    target: ClassVar[str] = "gym_optim.schedules:polynomial"

    power: PositiveFloat = 1.0
    """Power; 1 falls in a straight line, 2 sooner."""
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the peak that is left at the end."""


class Cosine(Scheduler):
    """Half a cosine wave down, once or again and again."""

    target: ClassVar[str] = "gym_optim.schedules:cosine"

    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the peak that is left at the end."""
    num_cycles: PositiveInt = 1
    """Waves in a row: each but the first is a warm restart at the peak."""


class WSD(Scheduler):
    """Warm-up, stable, decay: the peak until the last share of the steps, then down."""

    target: ClassVar[str] = "gym_optim.schedules:wsd"

    decay_ratio: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Share of the steps after warm-up in which the rate falls, rounded up to whole steps."""
    decay_type: Literal["linear", "cosine", "sqrt"] = "linear"
    """How it falls; `sqrt` is 1 - sqrt(share gone by), which arXiv:2405.18392 finds best."""
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the peak that is left at the end."""


class InverseSqrt(Scheduler):
    """One over the root of the number of steps: it has no end to know of."""

    target: ClassVar[str] = "gym_optim.schedules:inverse_sqrt"

    timescale: PositiveInt | None = None
    """Steps after warm-up in which the rate falls to 1 / sqrt(2); by default those of warm-up, or 10,000 without."""

"""Mixed precision."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, SerializeAsAny, model_validator

from gym_core import Slot
from gym_quant.config.base import PostTraining
from gym_quant.config.stored_layout import Scheme, data_bytes, declared, linear


class Mixed(PostTraining):
    """Bits for each layer under a budget for all: where fewer cost least, by the samples to calibrate on.

    Weights that read the same inputs (queries, keys and values; gate and up) have the same bits. What bits cost is measured for
    each by rounding it alone: |change of what the decoder layer puts out|^2 / |what it puts out|^2. The choice with the least sum
    within the budget is found exactly, up to a ten-thousandth of the budget; then another quantizer does the rounding.
    """

    method: ClassVar[str] = "gym_quant.post_training.mixed:MixedPrecision"
    calibrates: ClassVar[bool] = True

    bits_per_weight: Annotated[float, Field(ge=2, le=16)] = 4.5
    """Most bits that a weight of the quantized layers takes on average, scales and zero points included."""
    choices: Annotated[tuple[Literal[2, 3, 4, 5, 6, 7, 8], ...], Field(min_length=1)] = (3, 4, 5, 6, 8)
    """Bits to choose from."""
    group_size: NonNegativeInt = 128
    """Columns of a row that share a scale; 0: the whole row. Halved for layers that it does not divide."""
    quantizer: Annotated[SerializeAsAny[PostTraining] | None, Slot("quantizers", default="gptq")] = None
    """What rounds, with the bits that were chosen; by default `gptq`. Of its options those of the method count."""

    def scheme(self) -> Scheme:
        """Return how weights of the fewest bits are written."""
        return Scheme(min(self.choices), self.group_size)

    def declared_bytes(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Return the bytes of the budget, and of all that stays as it is."""
        least = self.scheme()
        of_codes = 0.0
        for name, shape in shapes.items():
            if linear(name, shape):
                of_codes += self.bits_per_weight * prod(shape) / 8
                of_codes -= data_bytes(least.fitted(shape[1]).stored(name, shape, "F32"))
        return declared(shapes, least) + round(of_codes)

    @model_validator(mode="after")
    def _within(self) -> Self:
        if self.bits_per_weight < min(self.choices):
            raise ValueError(f"bits_per_weight is below the fewest bits of choices, {min(self.choices)}")
        return self

"""FP8."""

from __future__ import annotations

from typing import ClassVar

from gym_quant.config.base import PostTraining
from gym_quant.config.stored_layout import Scheme


class FP8(PostTraining):
    """Round each weight to a floating-point number of 8 bits (E4M3), with a scale for each row: max|w| / 448."""

    method: ClassVar[str] = "gym_quant.post_training.rtn:RoundToNearest"

    activations: bool = False
    """Whether inputs are rounded to 8 bits too, with a scale for each token found as they come: GPUs then multiply in 8 bits."""

    def scheme(self) -> Scheme:
        """Return how weights are written."""
        return Scheme(8, 0, floating=True, activations=self.activations)

    def error_bound(self) -> float:
        """Return half of the largest gap between neighbours, 2^-3, relative to them."""
        return 2**-4

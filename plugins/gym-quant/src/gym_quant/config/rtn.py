"""Round to nearest."""

from __future__ import annotations

from typing import ClassVar

from gym_quant.config.base import IntegerOptions, rounding_error


class RTN(IntegerOptions):
    """Round each weight to the nearest of the numbers that its group can hold: no data decide, and it takes seconds.

        scale = 2 max|w| / (2^bits - 1)                  of each group; code = round(w / scale)
        scale = (max w - min w) / (2^bits - 1)           with `sym: false`, and zero = round(-min w / scale)

    What every other method is compared with.
    """

    method: ClassVar[str] = "gym_quant.post_training.rtn:RoundToNearest"

    def error_bound(self) -> float:
        """Return the largest relative Frobenius error on a standard normal matrix."""
        return rounding_error(self.bits)

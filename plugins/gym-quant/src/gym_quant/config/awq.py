"""AWQ."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt

from gym_quant.config.base import IntegerOptions


class AWQ(IntegerOptions):
    """Scale the columns that see large inputs up before rounding (arXiv:2306.00978); what comes before is scaled down.

        s = mean|x|^a, or mean|x|^a / mean(|w| / max|w|)^(1 - a)        over sqrt(max s min s)
        a in [0, 1), and which of the two, with the least |(round(W s) / s - W) x|^2 over the inputs
        y = round(W s) (x / s)                     x / s is had by dividing the norm or the linear layer that makes x

    The second form is AutoAWQ's `duo_scaling`: the mean is over the rows, the largest magnitude that of the group. Then the
    largest magnitude of each group is shrunk, where that lowers the error of its outputs, and the scales of each row are
    multiplied so that its outputs are as large as before (regressed on those of W, the slope is 1). A scale is left out where
    the layer would compute something else with it; what makes the inputs of a router and of experts stays.
    """

    method: ClassVar[str] = "gym_quant.post_training.awq:ActivationAware"
    calibrates: ClassVar[bool] = True

    sym: bool = False
    """Whether zero is in the middle of the codes; else each group has a zero point, and its codes span just what it holds."""
    duo_scaling: bool = True
    """Whether to try scales by the magnitudes of weights too; the paper has those by inputs alone."""
    grid: PositiveInt = 20
    """Values of a to try; and steps of a twentieth by which magnitudes are shrunk, to the half."""
    clip: bool = True
    """Whether to shrink the largest magnitudes of groups. The authors leave those of queries and keys as they are."""

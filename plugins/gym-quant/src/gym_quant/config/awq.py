"""AWQ."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from gym_quant.config.base import IntegerOptions


class AWQ(IntegerOptions):
    """Scale the columns that see large inputs up before rounding (arXiv:2306.00978); what comes before is scaled down.

        s = mean|x|^a, or mean|x|^a / mean(|w| / max|w|)^(1 - a)        over sqrt(max s min s)
        a in [0, 1), and which of the two, with the least |(round(W s) / s - W) x|^2 over the inputs
        y = round(W s) (x / s)                     x / s is had by dividing the norm or the linear layer that makes x

    The second form is AutoAWQ's `duo_scaling`: the mean is over the rows, the largest magnitude that of the group. Then the
    largest magnitude of each group is shrunk, where that lowers the error of the outputs, with what the other groups of the
    row are off by; and the scales of each row are multiplied so that its outputs are as large as before (regressed on those
    of W, the slope is 1). A scale is left out where the layer would compute something else with it; what makes the inputs of
    a router and of experts stays. `prompt_weight: 1` and `relative: false` are as in the paper.
    """

    method: ClassVar[str] = "gym_quant.post_training.awq:ActivationAware"
    calibrates: ClassVar[bool] = True

    sym: bool = False
    """Whether zero is in the middle of the codes; else each group has a zero point, and its codes span just what it holds."""
    duo_scaling: bool = True
    """Whether to try scales by the magnitudes of weights too; the paper has those by inputs alone."""
    grid: PositiveInt = 20
    """Values of a to try."""
    clip: bool = True
    """Whether to shrink the largest magnitudes of groups, by up to three eighths. The authors leave those of queries and keys
    as they are, and choose each group as though the others of its row were not rounded."""
    prompt_weight: Annotated[float, Field(ge=0, le=1)] = 0.1
    """How much a token counts that is not trained on, such as those of a prompt, beside one that is; the paper: 1."""
    relative: bool = True
    """Whether the error of a token counts relative to its hidden state behind the decoder layer, as the norms after it
    see it; else a few tokens with large states decide the scales. The paper has plain squares."""

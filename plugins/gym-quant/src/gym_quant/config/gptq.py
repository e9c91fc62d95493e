"""GPTQ."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gym_quant.config.base import IntegerOptions


class GPTQ(IntegerOptions):
    """Round one column after another, and let the columns that are left make up for the error (arXiv:2210.17323).

        H = mean of x x^T over the inputs of a layer, plus `damp_percent` of the mean of its diagonal
        w_j <- w_j - (w_q - round(w_q)) / [H_F^-1]_qq [H_F^-1]_qj          for the columns j in F that are left, q the next

    With the Cholesky factor of H^-1, as the paper computes it. Inputs are those behind the layers that are quantized already.
    """

    method: ClassVar[str] = "gym_quant.post_training.gptq:OptimalRounding"
    calibrates: ClassVar[bool] = True

    damp_percent: Annotated[float, Field(gt=0, lt=1)] = 0.01
    """Share of the mean of the diagonal of H that is added to it."""
    desc_act: bool = True
    """Whether columns with the largest inputs are rounded first; scales are then those of the weights before any of it."""

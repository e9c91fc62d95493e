"""Options that several quantizers have."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, SerializeAsAny

from gym_core import Quantizer, Slot
from gym_data.kinds import Data
from gym_quant.config.stored_layout import Scheme, declared


class Sampling(Quantizer):
    """Base of quantizers of finished models that look at samples (`gym_quant.post_training.calibration.draw`)."""

    calibrates: ClassVar[bool] = False
    """Whether the codes follow from what the data make of each layer, and not from the weights alone."""

    data: Annotated[SerializeAsAny[Data] | None, Slot("data", default="dataset", bare="sources")] = None
    """Other data than those of the recipe, to calibrate and to measure on."""
    calibration_samples: PositiveInt = 128
    """Samples to calibrate on, drawn with the seed of the run."""
    holdout_samples: PositiveInt = 32
    """Further samples, kept apart: perplexity and KL divergence before and after are measured on them."""
    calibration_length: Annotated[int, Field(ge=8)] = 1024
    """Most tokens of a sample; the rest is cut off. A longer block of plain text gives several samples."""
    max_kl: Annotated[float | None, Field(gt=0)] = None
    """Largest KL divergence (nats per token) of the quantized model from the model, on the samples held out. Above it nothing
    is written, and the run ends with an error; what was trained stays as it is."""


class PostTraining(Sampling):
    """Base of quantizers of finished models, which write compressed-tensors checkpoints: subclass it, point at a method."""

    target: ClassVar[str] = "gym_quant.post_training.quantizer:PostTrainingQuantizer"
    method: ClassVar[str] = ""
    """`module:class` of a `gym_quant.post_training.method.Method`, called with this configuration."""

    def scheme(self) -> Scheme:
        """Return how weights are written."""
        raise TypeError(f"{type(self).__name__} does not say how weights are written")

    def declared_bytes(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Return the bytes of codes, scales, zero points and all that stays as it is, with the headers of the files."""
        return declared(shapes, self.scheme())


class IntegerOptions(PostTraining):
    """Whole numbers with a scale for each group of columns."""

    bits: Literal[2, 3, 4, 5, 6, 7, 8] = 4
    """Bits of a weight. All are packed without gaps; vLLM has kernels for 4 and 8."""
    group_size: NonNegativeInt = 128
    """Columns of a row that share a scale; 0: the whole row. Halved for layers that it does not divide."""
    sym: bool = True
    """Whether zero is in the middle of the codes; else each group has a zero point, and its codes span just what it holds."""

    def scheme(self) -> Scheme:
        """Return how weights are written."""
        return Scheme(self.bits, self.group_size, self.sym)


def rounding_error(bits: int) -> float:
    """Return a bound on the relative error of rounding normal numbers, whose largest is below 5.5 standard deviations."""
    return 2 * 5.5 / (2**bits - 1) / sqrt(12)

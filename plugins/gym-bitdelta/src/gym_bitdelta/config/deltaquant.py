"""DeltaQuant."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from gym_bitdelta.config.base import DeltaOptions
from gym_bitdelta.fit.quant_scheme import Coding

Bits = Literal[1, 2, 3, 4, 8, 16]


class QuantMethod(StrEnum):
    """What a number of a change becomes."""

    INT2 = "int2"
    INT3 = "int3"
    INT4 = "int4"
    INT8 = "int8"
    BINARY = "binary"
    TERNARY = "ternary"
    DYNAMIC = "dynamic"


class DeltaQuant(DeltaOptions):
    """What a fine-tune changed, as whole numbers of a few bits, signs, or three values; or each weight as many as it is worth.

        s (q + 1/2 - 2^(bits - 1))          int2 to int8; the step s is searched for the least error
        s (q - z)                           with `symmetric: false`
        s q, q in {-1, 0, 1}                ternary, 1.6 bits
        a sign(W - W0)                      binary

    With data, codes are chosen for the outputs on samples: column after column, those that are left making up for the error.
    """

    method: QuantMethod = QuantMethod.INT4
    """`dynamic` gives each weight 0, 1, 2, 4, 8 or 16 bits, so that the sum of the errors is least within `max_bytes`. What an
    adapter changed is coded as factors where these are smaller, whatever the method; with `low_rank: false` as it says."""
    per_channel: bool = True
    """Whether each output has a scale of its own; else there is one for the matrix."""
    group_size: PositiveInt | None = None
    """Inputs of an output that share a scale."""
    symmetric: bool = True
    """Whether zero is in the middle of the codes; else each scale has a zero point beside it, for changes to one side."""
    calibration_percentile: Annotated[float | None, Field(gt=50, le=100)] = None
    """Percentile of |change| where the search for a step begins; by default at the largest."""
    calibrate: bool = True
    """Whether codes are chosen for the outputs on samples of the data, where there are some."""
    calibration_samples: PositiveInt = 256
    """Samples to calibrate on, drawn with the seed of the run."""
    sensitive_layers: tuple[str, ...] = ()
    """Patterns of names of weights, such as `*.down_proj.weight`, that take 8 bits."""
    layer_bits: Mapping[str, Bits] = Field(default_factory=dict)
    """Bits of weights by patterns of their names, whatever the method says, also of an adapter's; 16 keeps the change in fp16."""
    max_bytes: PositiveInt | None = None
    """Most bytes of the file, for `dynamic`."""

    def coding(self, name: str) -> Coding | None:
        """Return how the matrix of this name inside a layer is coded; None: as it is."""
        bits = self.fixed_bits(name)
        if bits is not None:
            return self.of_bits(bits)
        if self.method is QuantMethod.TERNARY:
            return self._scaled("ternary", 1)
        if self.method is QuantMethod.DYNAMIC:
            return None
        return self.of_bits(1 if self.method is QuantMethod.BINARY else int(self.method.value[3:]))

    def fixed_bits(self, name: str) -> int | None:
        """Return the bits that a weight has by its name; None where the method decides."""
        for pattern, bits in self.layer_bits.items():
            if fnmatchcase(name, pattern):
                return bits
        return 8 if any(fnmatchcase(name, pattern) for pattern in self.sensitive_layers) else None

    def patterns(self) -> Mapping[str, str]:
        """Return the patterns that say the bits of weights."""
        return dict.fromkeys(self.sensitive_layers, "sensitive_layers") | dict.fromkeys(self.layer_bits, "layer_bits")

    def of_bits(self, bits: int) -> Coding | None:
        """Return the coding of so many bits; None for 0, which drops a change, and 16, which leaves it as it is."""
        if bits in (0, 16):
            return None
        return self._scaled("signs" if bits == 1 else "grid", bits)

    def choices(self, name: str) -> Mapping[int, Coding | None]:
        """Return how the matrix of this name may be coded, by bits, where the method is `dynamic`."""
        if self.method is not QuantMethod.DYNAMIC or self.fixed_bits(name) is not None:
            return {}
        return {bits: self.of_bits(bits) for bits in (0, 1, 2, 4, 8, 16)}

    def budget(self) -> int | None:
        """Return the most bytes of the file."""
        return self.max_bytes

    def error_bound(self) -> float | None:
        """Return the largest relative Frobenius error on a change of normal numbers, embeddings in 4 bits included.

        None where codes are chosen for the outputs: that of the weights is then larger.
        """
        if self.method is QuantMethod.DYNAMIC or self.calibrate or not self.symmetric or self.layer_bits:
            return None
        return {"binary": 0.605, "ternary": 0.44, "int2": 0.348, "int3": 0.197}.get(self.method.value, 0.11)

    def size_varies(self) -> bool:
        """Return whether what the change holds decides its size."""
        signs = self.method is QuantMethod.BINARY or 1 in self.layer_bits.values()
        return self.method is QuantMethod.DYNAMIC or (signs and self.ternary_above < 1)

    def declared_bytes(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Return the bytes of the file where every weight changed everywhere, its header included; of `dynamic` the budget."""
        found = super().declared_bytes(shapes)
        return min(found, self.max_bytes) if self.max_bytes else found

    def _scaled(self, code: Literal["signs", "grid", "ternary"], bits: int) -> Coding:
        scales = "group" if self.group_size else "row" if self.per_channel else "tensor"
        symmetric = self.symmetric or code != "grid"
        return Coding(code, bits, scales, self.group_size, symmetric, self.calibration_percentile, self.ternary_above)

    @model_validator(mode="after")
    def _budget(self) -> Self:
        if (self.method is QuantMethod.DYNAMIC) != (self.max_bytes is not None):
            raise ValueError("max_bytes belongs to `method: dynamic`, and it needs one")
        if not self.symmetric and self.method in (QuantMethod.BINARY, QuantMethod.TERNARY):
            raise ValueError(f"{self.method.value} has no zero points: leave `symmetric` out")
        return self

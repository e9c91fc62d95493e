"""torchao: integers of 8 and 4 bits, and 8 bits of floating point."""

from __future__ import annotations

from typing import ClassVar, Literal

from gym_quant.config.load_time import LoadTime, parts

GROUP = 64


class TorchAO(LoadTime):
    """Rounding to nearest as torchao does it: by rows at 8 bits, by groups of 64 columns at 4.

        code = round(w / scale)                       scale = 2 max|w| / (2^bits - 1), of each row or group; float8 alike

    Stored: 8 bits a weight, 40 bits a row for int8, 32 for float8. int4 is stored a code to a byte, so it saves no more than
    int8 does: torchao packs it for GPU kernels alone.

    Code: that of the library (`pip install 'gym-quant[torchao]'`); products run in the precision of the run, with weights that
    are decoded for the pass.

    Source: github.com/pytorch/ao, without a paper. Runs on CPU and CUDA.
    """

    target: ClassVar[str] = "gym_quant.load_time.torchao:TorchAoCodec"
    library: ClassVar[str] = "torchao"
    extra: ClassVar[str] = "torchao"
    instead: ClassVar[str] = "quanto, or bnb_8bit"

    weights: Literal["int8", "int4", "float8"] = "int8"
    """How a weight is stored; `float8` is E4M3."""

    def group_size(self, columns: int) -> int:
        """Return how many columns share a scale."""
        return GROUP if self.weights == "int4" and columns % GROUP == 0 else columns

    def matrix_bytes(self, count: int, rows: int, columns: int) -> int:
        """Return the bytes of codes, scales and zero points."""
        scales = rows * parts(columns, self.group_size(columns))
        return count * (rows * columns + scales * (4 if self.weights == "float8" else 5))

    def error_bound(self) -> float | None:
        """Return the largest relative Frobenius error on a standard normal matrix."""
        return {"int8": 0.015, "float8": 0.04, "int4": 0.14}[self.weights]

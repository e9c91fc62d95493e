"""quanto: integers of 2, 4 and 8 bits, and 8 bits of floating point."""

from __future__ import annotations

from typing import ClassVar, Literal

from gym_quant.config.load_time import LoadTime, parts

GROUP = 128  #: columns that share a scale, where they divide a row; else as many fewer, by 32, as do


class Quanto(LoadTime):
    """Rounding to nearest as quanto does it: by rows at 8 bits, by groups of columns below.

        code = round(w / scale)                       scale = max|w| / 127, of each row; float8 alike
        code = round(w / scale) + shift               at 2 and 4 bits: scale = (max w - min w) / (2^bits - 1) of each group

    Stored: 8, 4 or 2 bits a weight; 32 bits a row at 8 bits and float8, 64 bits a group at 2 and 4. A group is 128 columns, or
    the whole row where none of 128, 96, 64 and 32 divides it or it is no longer.

    Code: that of the library (`pip install 'gym-quant[quanto]'`); products run in the precision of the run, with weights that
    are decoded for the pass.

    Source: github.com/huggingface/optimum-quanto, without a paper. Runs on CPU and CUDA.
    """

    target: ClassVar[str] = "gym_quant.load_time.quanto:QuantoCodec"
    library: ClassVar[str] = "optimum.quanto"
    extra: ClassVar[str] = "quanto"
    instead: ClassVar[str] = "hqq, or bnb_4bit"

    weights: Literal["int2", "int4", "int8", "float8"] = "int4"
    """How a weight is stored; `float8` is E4M3."""

    def group_size(self, columns: int) -> int | None:
        """Return how many columns share a scale; None: the whole row."""
        if self.weights not in ("int2", "int4") or columns <= GROUP:
            return None
        return next((size for size in range(GROUP, 0, -32) if columns % size == 0), None)

    def matrix_bytes(self, count: int, rows: int, columns: int) -> int:
        """Return the bytes of codes, scales and shifts."""
        if self.weights in ("int8", "float8"):
            return count * (rows * columns + 4 * rows)
        group, each = self.group_size(columns) or columns, {"int4": 2, "int2": 4}[self.weights]
        groups = rows * (columns // group)
        return count * (parts(groups, each) * group + 8 * groups)

    def error_bound(self) -> float | None:
        """Return the largest relative Frobenius error on a standard normal matrix; at 2 bits nothing is promised."""
        return {"int8": 0.015, "float8": 0.04, "int4": 0.13}.get(self.weights)

"""EETQ: 8-bit integers for GPU kernels."""

from __future__ import annotations

from typing import ClassVar

from gym_quant.config.load_time import LoadTime


class EETQ(LoadTime):
    """8-bit integers with a scale for each row, multiplied by kernels that decode on the way; needs CUDA.

        code = round(127 w / max|w|)                  of each row

    Stored: 8 bits a weight and 16 bits a row.

    Code: that of the library (`eetq`), products included, in fp16. It has no wheel for this Python: build it from
    github.com/NetEase-FuXi/EETQ.

    Not with: machines without CUDA, where it is refused by name.
    """

    target: ClassVar[str] = "gym_quant.load_time.eetq:EetqCodec"
    library: ClassVar[str] = "eetq"
    extra: ClassVar[str] = "eetq"
    instead: ClassVar[str] = "bnb_8bit"

    def matrix_bytes(self, count: int, rows: int, columns: int) -> int:
        """Return the bytes of codes and scales."""
        return count * (rows * columns + 2 * rows)

    def error_bound(self) -> float | None:
        """Return the largest relative Frobenius error on a standard normal matrix."""
        return 0.015

"""8 bits of bitsandbytes: LLM.int8()."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gym_quant.config.load_time import LoadTime


class Bnb8bit(LoadTime):
    """8-bit integers with a scale for each row, multiplied with activations of 8 bits: LLM.int8() of bitsandbytes.

        code = round(127 w / max|w|)                  of each row; activations alike, token by token
        columns in which an activation is above `threshold` are multiplied in 16 bits

    Stored: 8 bits a weight and 32 bits a row.

    Code: that of bitsandbytes (`pip install 'gym-quant[bitsandbytes]'`), products included. Activations are rounded to fp16
    first. Which columns are multiplied in 16 bits depends on all tokens of a batch.

    Paper: Dettmers et al., LLM.int8() (arXiv:2208.07339). Runs on CPU and CUDA.
    """

    target: ClassVar[str] = "gym_quant.load_time.bnb_8bit:Bnb8bitCodec"
    library: ClassVar[str] = "bitsandbytes"
    extra: ClassVar[str] = "bitsandbytes"
    instead: ClassVar[str] = "hqq with bits: 8"

    threshold: Annotated[float, Field(ge=0)] = 6.0
    """Magnitude of an activation above which its column is multiplied in 16 bits; 0: none is."""

    def matrix_bytes(self, count: int, rows: int, columns: int) -> int:
        """Return the bytes of codes and scales."""
        return count * (rows * columns + 4 * rows)

    def error_bound(self) -> float | None:
        """Return the largest relative Frobenius error on a standard normal matrix."""
        return 0.015

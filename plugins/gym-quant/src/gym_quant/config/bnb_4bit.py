"""4 bits of bitsandbytes: NF4 and FP4."""

from __future__ import annotations

from typing import ClassVar, Literal

from gym_quant.config.load_time import LoadTime, parts

NESTED = 256  #: scales of weights that share a scale of their own


class Bnb4bit(LoadTime):
    """4-bit levels with a scale for each block of weights, as bitsandbytes stores them: the base of QLoRA.

        code = nearest level to w / max|w|            of each block; levels are quantiles of a normal distribution (NF4)
        or those of a floating-point number of 4 bits (FP4)

    Stored: 4 bits a weight and 32 bits a block; with `double_quant` 8 bits a block and 32 for each 256 blocks. By default that
    is 4.13 bits a weight.

    Code: encoding and decoding that of bitsandbytes (`pip install 'gym-quant[bitsandbytes]'`); products run in the precision of
    the run, with weights that are decoded for the pass. Its own layer stores weights otherwise after it was evaluated on a CPU
    with AVX512-BF16, from which they cannot be merged; what is stored here never changes.

    Paper: Dettmers et al., QLoRA (arXiv:2305.14314). Runs on CPU and CUDA.
    """

    target: ClassVar[str] = "gym_quant.load_time.bnb_4bit:Bnb4bitCodec"
    library: ClassVar[str] = "bitsandbytes"
    extra: ClassVar[str] = "bitsandbytes"
    instead: ClassVar[str] = "hqq with bits: 4"

    quant_type: Literal["nf4", "fp4"] = "nf4"
    """Levels: `nf4` for weights that are about normal, as those of most models are, or `fp4`."""
    double_quant: bool = True
    """Whether the scales are quantized too, to 8 bits."""
    blocksize: Literal[32, 64, 128, 256, 512, 1024, 2048, 4096] = 64
    """Weights that share a scale."""

    def matrix_bytes(self, count: int, rows: int, columns: int) -> int:
        """Return the bytes of codes and scales."""
        blocks = parts(rows * columns, self.blocksize)
        scales = blocks + 4 * parts(blocks, NESTED) + 4 if self.double_quant else 4 * blocks
        return count * (parts(rows * columns, 2) + scales)

    def error_bound(self) -> float | None:
        """Return the largest relative Frobenius error on a standard normal matrix; of large blocks nothing is promised."""
        return {"nf4": 0.11, "fp4": 0.14}[self.quant_type] if self.blocksize <= 64 else None

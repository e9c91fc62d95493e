"""HQQ: half-quadratic quantization."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import PositiveInt

from gym_quant.config.load_time import LoadTime, parts

PACKED = {4: 2, 2: 4, 1: 8}  #: codes in a byte; of 3 bits ten are in four bytes, and 5, 6 and 8 bits take a byte
TEN = 10


class HQQ(LoadTime):
    """Integers with a scale and a zero point for each group, found by half-quadratic optimization; no data are needed.

        code = round(w / scale + zero)                of each group
        zero = what makes the error sparse: its norm of p = 0.7 is lowered by turns of shrinking and averaging

    Stored: 1, 2, 4 or 8 bits a weight as `bits` says; 3 bits as 3.2, ten codes in 32 bits; 5 and 6 bits as 8, so that they save
    nothing over 8 and are for trying out. Scale and zero point are fp16: 32 bits a group.

    Code: that of the library (`pip install 'gym-quant[hqq]'`), with codes packed as it packs them; products run in the
    precision of the run, with weights that are decoded for the pass.

    Differs: a matrix whose size no group divides is filled up with zeros. The library keeps scales in the precision that it
    computes in.

    Source: Badri and Shaji, Half-Quadratic Quantization (mobiusml.github.io/hqq_blog). Runs on CPU and CUDA.
    """

    target: ClassVar[str] = "gym_quant.load_time.hqq:HqqCodec"
    library: ClassVar[str] = "hqq"
    extra: ClassVar[str] = "hqq"
    instead: ClassVar[str] = "quanto, or bnb_4bit"

    bits: Literal[1, 2, 3, 4, 5, 6, 8] = 4
    """Levels of a weight are two to this power."""
    group_size: PositiveInt = 64
    """Weights that share a scale."""

    def groups(self, numbers: int) -> int:
        """Return the groups that so many weights take: whole bytes of codes."""
        whole = PACKED.get(self.bits, 1)
        return parts(parts(numbers, self.group_size), whole) * whole

    def matrix_bytes(self, count: int, rows: int, columns: int) -> int:
        """Return the bytes of codes, scales and zero points."""
        groups = self.groups(rows * columns)
        lines = 4 * parts(groups, TEN) if self.bits == 3 else groups // PACKED.get(self.bits, 1)
        return count * (lines * self.group_size + 4 * groups)

    def error_bound(self) -> float | None:
        """Return the largest relative Frobenius error on a standard normal matrix; below 3 bits nothing is promised."""
        bounds = {8: 0.01, 6: 0.03, 5: 0.06, 4: 0.11, 3: 0.22}
        return bounds.get(self.bits) if self.group_size <= 64 else None

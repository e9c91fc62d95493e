"""quanto: integers of 2, 4 and 8 bits, and 8 bits of floating point."""

from __future__ import annotations

from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Literal

from gym_core import GymError
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

    def check(self) -> None:
        """Raise GymError where the library is missing, or would wait for ever for somebody who was to compile its kernels."""
        super().check()
        found = find_spec(self.library)
        for place in (found and found.submodule_search_locations) or ():
            for lock in Path(place).glob("library/extensions/*/build/lock"):
                if not _held(lock):
                    raise GymError(
                        f"compiling the kernels of {self.library} was cut short, and its lock is still there",
                        where=str(lock),
                        key="model.quantization",
                        fix="remove that file, unless a process of another user is compiling now",
                    )

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


def _held(lock: Path) -> bool:
    """Whether a process that can be looked at has a file open, as torch has its lock while it compiles; elsewhere than on Linux
    nobody can say, and it counts as held.
    """
    opened = list(Path("/proc").glob("[0-9]*/fd/*"))
    for file in opened:
        with suppress(OSError):
            if file.readlink() == lock.resolve():
                return True
    return not opened

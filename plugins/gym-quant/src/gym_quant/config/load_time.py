"""What quantizers have in common that hold the weights of a base in a few bits while adapters train beside it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from math import ceil, prod
from typing import ClassVar

from gym_core import GymError
from gym_torch.kinds import LoadTimeQuantizer


class LoadTime(LoadTimeQuantizer):
    """Base of quantizers for `model.quantization`: subclass it, point at a codec of `gym_torch.quantization.weights`."""

    library: ClassVar[str] = ""
    """Module that encodes and decodes, of the extra of the same name as `extra`."""
    extra: ClassVar[str] = ""
    """Extra of gym-quant that brings it."""
    instead: ClassVar[str] = ""
    """What holds about as many bits, and needs another library or none that is missing here."""

    def check(self) -> None:
        """Raise GymError where the library is missing."""
        try:
            there = find_spec(self.library) is not None
        except ModuleNotFoundError:  # of the package around it
            there = False
        if not there:
            raise GymError(
                f"{self.library} is not installed",
                key="model.quantization",
                fix=f"pip install 'gym-quant[{self.extra}]'" + (f", or use {self.instead}" if self.instead else ""),
            )

    def declared_bytes(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Return the bytes in memory of matrices of these shapes, `[out, in]`, each quantized."""
        return sum(self.matrix_bytes(prod(shape[:-2]), shape[-2], shape[-1]) for shape in shapes.values())

    def matrix_bytes(self, count: int, rows: int, columns: int) -> int:
        """Return the bytes of `count` matrices of a shape."""
        raise TypeError(f"{type(self).__name__} does not declare the size of what it stores")


def parts(whole: int, size: int) -> int:
    """Return how many parts of a size hold all of it."""
    return ceil(whole / size)

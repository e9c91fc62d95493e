"""The C kernels: compiled when they are first used, by the system's compiler, and kept in `$GYM_CACHE` by their source."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gym_bitdelta.runtime.kernel_layout import LANES, WORD, Field
from gym_core import GymError
from gym_torch.kernels import native_code

SOURCE = Path(__file__).with_name("planes.c")


class Library:
    """The compiled kernels of this machine."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Take what was compiled. Raises OSError where that belongs to another version."""
        library.gym_kernel.restype = ctypes.c_char_p
        if library.gym_fields() != len(Field):
            raise OSError("this library belongs to another version")
        pointer, whole = ctypes.c_void_p, ctypes.c_int64
        library.gym_add_products.argtypes = [
            pointer, pointer, ctypes.c_int, whole, whole, whole, whole, pointer, pointer, pointer, pointer, ctypes.c_int,
            ctypes.c_int,
        ]  # fmt: skip
        self._call: Any = library.gym_add_products
        found: list[str] = []
        while (name := library.gym_kernel(len(found))) is not None:
            found.append(name.decode())
        self.names = {name: number for number, name in enumerate(found) if name}  #: what runs here, fastest first

    def add(
        self, y: Tensor, x: Tensor, arenas: Sequence[Tensor], records: Tensor, starts: Tensor, rows: Tensor, name: str
    ) -> None:
        """Do what `gym_bitdelta.runtime.products.Products.add` promises, with the kernel of this name."""
        place = (ctypes.c_void_p * len(arenas))(*[arena.data_ptr() for arena in arenas])
        size, per, inputs = x.shape
        failed = self._call(
            y.data_ptr(), x.data_ptr(), x.dtype == torch.bfloat16, per, inputs, y.shape[-1], len(arenas),
            starts.data_ptr(), rows.data_ptr(), place, records.data_ptr(), torch.get_num_threads(), self.names[name],
        )  # fmt: skip
        if failed:
            raise GymError(f"no memory for a product of {size * per} tokens with packed deltas")


def tiles(bits: NDArray[np.uint8], columns: int) -> NDArray[np.int32]:
    """Arrange signs as the C kernels read them: `[planes, tiles, words, LANES]`."""
    planes, rows, width = bits.shape
    words, more = -(-columns // WORD), -rows % LANES
    filled = more or words * 4 != width
    whole = np.pad(bits, ((0, 0), (0, more), (0, words * 4 - width))) if filled else np.ascontiguousarray(bits)
    lanes = whole.view("<u4").astype(np.uint32, copy=False).reshape(planes, -1, LANES, words)
    return np.ascontiguousarray(lanes.swapaxes(2, 3)).view(np.int32).reshape(-1)


def tiled_signs(words: Tensor, planes: int, rows: int, columns: int, chosen: Tensor) -> Tensor:
    """Return the signs `[planes, n, columns]` (bool) of the chosen rows `[n]` of what `tiles` arranged."""
    held = words.view(planes, -(-rows // LANES), -(-columns // WORD), LANES)
    found = held[:, chosen // LANES, :, chosen % LANES]  # [n, planes, words]: two indices apart come first
    bits = found.movedim(0, 1)[..., None] >> torch.arange(WORD, dtype=torch.int32, device=words.device) & 1
    return bits.flatten(-2)[..., :columns].bool()


@cache
def library() -> Library | None:
    """Return the kernels, compiled if need be; None where there is no compiler, or it fails, or the user wants none."""
    found = native_code.library(SOURCE)
    try:
        return Library(found) if found else None
    except OSError:
        return None

"""The C kernels: compiled when they are first used, by the system's compiler, and kept in `$GYM_CACHE` by their source."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from platform import machine
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gym_bitdelta.runtime.arena import LANES, WORD, Field
from gym_core import GymError
from gym_core.files import cache_dir, replacing

SOURCE = Path(__file__).with_name("planes.c")
FLAGS = ("-O3", "-std=c11", "-fPIC", "-shared", "-w")
THREADS = ("-fopenmp",)  #: left out where the compiler does not know it; everything then runs in one thread
OFF = "GYM_BITDELTA_COMPILE"  #: set to 0, nothing is compiled
SECONDS = 120  #: that a compiler may take


class Library:
    """The compiled kernels of this machine."""

    def __init__(self, file: Path) -> None:
        """Load them. Raises OSError where that is no library of this machine, or one of another version."""
        library = ctypes.CDLL(str(file))
        library.gym_kernel.restype = ctypes.c_char_p
        if library.gym_fields() != len(Field):
            raise OSError(f"{file} belongs to another version")
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
    if os.environ.get(OFF) == "0":
        return None
    compiler = shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc") or shutil.which("clang")
    key = hashlib.sha256(
        SOURCE.read_bytes() + repr((FLAGS, THREADS, compiler, sys.platform, machine())).encode()
    ).hexdigest()
    file = cache_dir() / "kernels" / f"planes-{key[:32]}.so"
    try:
        return Library(file if _ours(file) else _compile(compiler, file))
    except (OSError, subprocess.SubprocessError):
        return None


def _ours(file: Path) -> bool:
    """Whether it is there and this user made it: what it holds is run."""
    return file.is_file() and (os.name != "posix" or file.stat().st_uid == os.getuid())


def _compile(compiler: str | None, file: Path) -> Path:
    """Compile into a file of its own and move it, so that of several processes each finds all of it or nothing."""
    if compiler is None:
        raise OSError("there is no compiler")
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with replacing(file) as building:
        for threads in (THREADS, ()):
            command = [compiler, *FLAGS, *threads, str(SOURCE), "-o", str(building)]
            if subprocess.run(command, capture_output=True, timeout=SECONDS, check=False).returncode == 0:
                return file
        raise OSError("the compiler failed")

"""How the C allocator handles freed memory."""

from __future__ import annotations

import ctypes
import platform

_M_MMAP_THRESHOLD = -3  #: of mallopt(3)
BLOCK = 2**20  #: bytes


def give_back_freed() -> None:
    """Have glibc return freed blocks of a megabyte or more to the system at once; without glibc do nothing.

    By default it keeps free blocks of up to 32 MiB, and an aligned block rarely fits into a free block of the same size: with
    other tensors in between, several times the memory in use stays resident. Allocating again costs time with small batches.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, BLOCK)

"""What the allocator of a CPU does with memory that is no longer used."""

from __future__ import annotations

import ctypes
import platform

_M_MMAP_THRESHOLD = -3  #: of mallopt(3)
BLOCK = 2**20  #: bytes


def give_back_freed() -> None:
    """Have glibc give freed blocks of a megabyte or more back to the system at once; elsewhere do nothing.

    By default it keeps blocks of up to 32 MiB for later, and an aligned block rarely fits where one of the same size was: beside
    tensors that stay, several times what is in use remains resident. Getting blocks anew takes time where batches are small.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, BLOCK)

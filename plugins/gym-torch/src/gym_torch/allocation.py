"""Has the C library give the memory of freed tensors back to the system.

glibc takes large blocks from the system one by one and gives them back when they are freed, but with every such block it
raises the size that counts as large, up to 32 MiB. Smaller tensors then come from a heap that shrinks only from its end,
so that activations long gone stay resident below whatever was allocated last.
"""

from __future__ import annotations

import ctypes
import os
import platform

LARGE = 2**20  #: bytes; below it, the pages kept are few and asking the system for them each time would take long
_M_MMAP_THRESHOLD = -3  # of <malloc.h>; setting it ends the raising, see mallopt(3)


def give_back_freed() -> bool:
    """Set the size that counts as large for good, for all of this process, and return whether it was set.

    It is not where the C library is another one, or where the environment has set it (`MALLOC_MMAP_THRESHOLD_`).
    """
    if platform.libc_ver()[0] != "glibc" or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return False
    return bool(ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE))

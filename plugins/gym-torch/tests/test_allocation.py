"""Freed memory goes back to the system, in a process whose allocator has been taught to keep it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

KEPT = """
import sys
import psutil
import torch
from gym_torch.allocation import give_back_freed

if sys.argv[1] == "given back":
    assert give_back_freed()
resident = lambda: psutil.Process().memory_info().rss
del (large := [torch.ones(24 * 2**20, dtype=torch.uint8)])[:]  # left alone, blocks of up to 24 MiB are kept from now on
before = resident()
between = []  # what lives on above what is freed
activations = []
for _ in range(16):
    activations.append(torch.ones(8 * 2**20, dtype=torch.uint8))
    between.append(torch.ones(2**16, dtype=torch.uint8))
activations.clear()
print(resident() - before)
"""


def left(how: str) -> int:
    """Return the bytes that stay resident after 128 MiB of tensors are gone."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", KEPT, how], check=True, capture_output=True, text=True, env=environment
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_what_is_freed_does_not_stay_resident() -> None:
    assert left("kept") > 64 * 2**20
    assert left("given back") < 16 * 2**20

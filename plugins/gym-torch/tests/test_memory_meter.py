"""What a run took of the memory of a machine."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from gym_torch.memory.memory_meter import Meter


def test_the_meter_sees_what_is_taken() -> None:
    meter = Meter(torch.device("cpu"))
    taken = torch.ones(64 * 2**20, dtype=torch.uint8)
    assert meter.peak() >= 0.9 * len(taken)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_products_of_many_numbers_of_rows_leave_little_behind() -> None:
    """A run has steps of any length, and a server prompts; compiled code of each took 700 MB here."""
    script = """
from gym_torch.kernels.library_settings import set_libraries
set_libraries()
import torch
def held(): return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20
weight, rows = torch.randn(256, 256).bfloat16(), torch.randn(2048, 256).bfloat16()
rows @ weight
before = held()
for count in range(512, 1536):
    rows[:count] @ weight
print(held() - before)
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 300

"""What a run took of the memory of a machine."""

from __future__ import annotations

import torch

from gym_torch.memory.memory_meter import Meter


def test_the_meter_sees_what_is_taken() -> None:
    meter = Meter(torch.device("cpu"))
    taken = torch.ones(64 * 2**20, dtype=torch.uint8)
    assert meter.peak() >= 0.9 * len(taken)

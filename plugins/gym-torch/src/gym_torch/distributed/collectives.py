"""Reductions of numbers and gathering of lists over all processes; the identity for a single one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

T = TypeVar("T")


def over_processes(accelerator: Accelerator, values: Sequence[float]) -> list[float]:
    """Sum each number over all processes."""
    if accelerator.num_processes == 1:
        return list(values)
    tensor = torch.tensor(values, dtype=torch.float64, device=accelerator.device)
    found: list[float] = accelerator.reduce(tensor, "sum").tolist()
    return found


def largest_over_processes(accelerator: Accelerator, values: Sequence[float]) -> list[float]:
    """Take the largest of each number over all processes; NaN where one has it."""
    if accelerator.num_processes == 1 or not values:
        return list(values)
    tensor = torch.tensor(values, dtype=torch.float64, device=accelerator.device)
    found: list[float] = accelerator.gather(tensor[None]).amax(0).tolist()
    return found


def gathered(accelerator: Accelerator, values: Sequence[T]) -> list[T]:
    """Join the lists of all processes, in their order."""
    found: list[T] = gather_object(list(values)) if accelerator.num_processes > 1 else list(values)
    return found

"""Which kernel multiplies few rows by a weight, as decoding does: one row for each sequence of the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from gym_torch.kernels import decoding_kernels, onednn_linear
from gym_torch.kernels.kernel_functions import KernelFunctions, spelled
from gym_torch.kernels.kernel_trials import Choices, Work

RECORD = "few_row_products"  #: in run.json: by shape and number of rows, the kernel that a run took, or ""
SIZES = (1, 4, 16, 32, 64, 128, 256)  #: rows that are tried; others are as the next larger of these

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def chosen(rows: int, weight: Tensor) -> Product | None:
    """Return the kernel for `rows` rows and a weight `[outputs, inputs]`; None where a trial finds torch faster."""
    size = next((size for size in SIZES if rows <= size), None)
    if size is None or not CHOICES.any():
        return None

    def work(own: Product) -> Work:
        draws = torch.Generator().manual_seed(0)
        drawn = (torch.randn(count, weight.shape[1], generator=draws) for count in (size, len(weight)))
        given, held = (part.to(weight.dtype) for part in drawn)

        def theirs(dtype: torch.dtype) -> Sequence[Tensor]:
            return [nn.functional.linear(given.to(dtype), held.to(dtype))]

        return lambda: [own(given, held, None)], partial(theirs, weight.dtype), partial(theirs, torch.float64)

    name = f"{size} rows of {weight.shape[1]} to {weight.shape[0]} {spelled(weight.dtype)}"
    return CHOICES.choose(lambda each: each.product, name, (weight,), work)


def kernels() -> Sequence[KernelFunctions]:
    """Return the kernels of the engine: its own, and oneDNN, which is faster with more rows on some processors."""
    return (*decoding_kernels.functions(), *onednn_linear.functions())


CHOICES = Choices(RECORD, kernels)  #: of this process

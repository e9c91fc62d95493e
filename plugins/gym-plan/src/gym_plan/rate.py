"""The rate of this machine in FLOP/s: a short, cached trial of the matrix products of a layer."""

from __future__ import annotations

import time

import torch

from gym_torch.kernels.precision_probe import device, remembered
from gym_torch.rounding import rounding

ROWS = 128
WIDEST = 512  #: wider layers are judged by a trial of this width, so that it takes a moment only
ENOUGH = 0.3  #: seconds after which no further try begins; the best counts, for the others were disturbed


def rate(width: int, precision: str) -> float:
    """Return floating-point operations a second of a feed-forward block, forward and backward."""
    width = min(width, WIDEST)
    measured = remembered("rate", f"{width} {precision}", lambda: {"rate": _measure(width, precision)})
    return float(measured["rate"])


def _measure(width: int, precision: str) -> float:
    rows = torch.randn(ROWS, width, device=device())
    wide = torch.randn(3 * width, width, device=device(), requires_grad=True)
    narrow = torch.randn(width, 3 * width, device=device(), requires_grad=True)
    best, end = float("inf"), time.perf_counter() + ENOUGH
    while best == float("inf") or time.perf_counter() < end:
        began = time.perf_counter()
        with rounding(device(), precision):
            out = torch.nn.functional.silu(rows @ wide.T) @ narrow.T
        out.float().mean().backward()  # type: ignore[no-untyped-call]
        assert narrow.grad is not None
        float(narrow.grad[0, 0])  # reading a number waits for the device
        best = min(best, time.perf_counter() - began)
    products = 5  # two forward, three backward: nothing needs the gradient of the rows
    return products * 2 * ROWS * width * 3 * width / best

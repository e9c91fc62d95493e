"""Attention in a packed row by the kernel of the engine and by torch: milliseconds forward and backward, and errors.

Rows of segments of one length, with 8 query and 4 key heads of 64, in the precisions that the kernel is compiled for. Both sides
take turns in one process; the fastest of their turns counts. Rates are of the operations that causal attention needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import report
import torch
from torch import Tensor

from gym_torch.attention.fused_attention import FLAGS, kernel
from gym_torch.attention.segment_attention import piecewise
from gym_torch.kernels.kernel_functions import Scores
from gym_torch.segment_spans import Spans

HEADS, KV_HEADS, DIM = 8, 4, 64
LENGTHS = {50: 32, 150: 16, 300: 8, 600: 4, 1500: 2, 4000: 1}  #: tokens of a segment, and segments in a row
RULE = Scores(DIM**-0.5)
Attend = Callable[[Tensor, Tensor, Tensor, Spans, Scores], Tensor]


def measure(out: report.Report, quick: bool) -> None:
    """Compare for each length and precision; quick: in fp32 alone."""
    for dtype in [torch.float32] if quick else FLAGS:
        own = kernel(dtype)
        if own is None:
            out.figures[_short(dtype)] = "no compiler"
            continue
        for length, count in LENGTHS.items():
            _compare(out, own.attend, dtype, length, count, 5 if quick else 15)


def _compare(out: report.Report, own: Attend, dtype: torch.dtype, length: int, count: int, turns: int) -> None:
    spans, draws = Spans((length,) * count), torch.Generator().manual_seed(0)
    sizes = HEADS, KV_HEADS, KV_HEADS, HEADS
    wide = [torch.randn(1, length * count, size, DIM, generator=draws).transpose(1, 2) for size in sizes]
    given = [part.to(dtype) for part in wide]
    sides = {"kernel": own, "torch": piecewise}
    best: dict[str, dict[str, float]] = {name: {} for name in sides}
    for _ in range(turns):
        for name, attend in sides.items():
            for what, seconds in _timed(attend, given, spans).items():
                best[name][what] = min(seconds, best[name].get(what, seconds))
    exact = _results(piecewise, [part.double() for part in given], spans)
    flops = 2 * HEADS * DIM * length**2 * count
    name = f"{_short(dtype)}, {count} x {length}"
    out.figures[name] = {
        side: {
            "forward_ms": round(1e3 * found["forward"], 2),
            "backward_ms": round(1e3 * found["backward"], 2),
            "gflops": round(3.5 * flops / sum(found.values()) / 1e9),
            "error": float(f"{_error(_results(sides[side], given, spans), exact):.1e}"),
        }
        for side, found in best.items()
    }
    ratio = sum(best["torch"].values()) / sum(best["kernel"].values())
    out.check(f"{name} tokens: times as fast as torch", round(ratio, 2), at_least=1)
    errors = [out.figures[name][side]["error"] for side in sides]
    out.check(f"{name} tokens: error, of that of torch", round(errors[0] / errors[1], 2), at_most=1.25)


def _timed(attend: Attend, given: Sequence[Tensor], spans: Spans) -> dict[str, float]:
    *leaves, by_out = (part.detach().requires_grad_() for part in given)
    began = time.perf_counter()
    found = attend(*leaves, spans, RULE)
    between = time.perf_counter()
    torch.autograd.grad(found, leaves, by_out.detach())
    return {"forward": between - began, "backward": time.perf_counter() - between}


def _results(attend: Attend, given: Sequence[Tensor], spans: Spans) -> list[Tensor]:
    *leaves, by_out = (part.detach().requires_grad_() for part in given)
    found = attend(*leaves, spans, RULE)
    return [found.detach(), *torch.autograd.grad(found, leaves, by_out.detach())]


def _error(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """Return the largest error of a result, relative to it."""
    return max(float((one.double() - true).norm() / true.norm()) for one, true in zip(found, exact, strict=True))


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


if __name__ == "__main__":
    report.main(measure, __doc__ or "")

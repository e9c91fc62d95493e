"""Whether to compute in bf16 on this machine: measured once, cached, and printed."""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from gym_core import cache_dir
from gym_core.files import write_atomically
from gym_data.provenance import maker
from gym_torch.kernels.native_code import features

ROWS = (64, 512)  #: tokens in the first, short trial and in the second
WIDEST = 2048  #: wider models are judged by a trial of this width
WORTH = 1.15  #: bf16 must be so many times as fast as fp32
CLOSE = 0.02  #: and its gradients that close to those of fp32, relative, in the Frobenius norm


@dataclass(frozen=True)
class Trial:
    """Result of the trial."""

    fp32_ms: float
    bf16_ms: float
    error: float
    device: str

    @property
    def precision(self) -> str:
        """Return `bf16` where it is exact enough and faster, else `fp32`."""
        return "bf16" if self.error < CLOSE and self.fp32_ms > WORTH * self.bf16_ms else "fp32"

    def __str__(self) -> str:
        """Return the result in one line."""
        times = f"{self.bf16_ms:.2g} ms against {self.fp32_ms:.2g} ms in fp32"
        return f"{self.precision} (on this machine, {self.device}, bf16 takes {times}, error {self.error:.1%})"


def device() -> torch.device:
    """Return the device that training will use."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def trial(width: int) -> Trial:
    """Return the trial for a model of this hidden size, cached for this machine."""
    where = f"{device_name()}, {torch.get_num_threads()} threads"
    return Trial(**remembered("precision", str(width), lambda: asdict(_measure(width, where))))


def remembered(kind: str, what: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the result of a measurement, cached for this machine and this version of the code.

    An unreadable cache entry is measured again. Machines that share a cache are distinguished by the processor features that the
    compiler reports: torch has one name for processors with bf16 products and those without.
    """
    where = f"{device_name()}, {torch.get_num_threads()} threads"
    made_by = json.dumps([kind, where, torch.__version__, maker("gym_torch"), what])
    key = sha256(made_by.encode() + features()).hexdigest()[:16]
    file = cache_dir() / "probe" / f"{key}.json"
    with suppress(OSError, ValueError):
        found = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
    found = measure()
    with suppress(OSError):  # where nothing can be kept, it is measured again
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(found))
    return found


def device_name() -> str:
    """Return the name of the device."""
    if device().type == "cuda":
        return torch.cuda.get_device_name()
    return f"{device().type} {platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


@torch.enable_grad()
def _measure(width: int, where: str) -> Trial:
    """Time a feed-forward block forward and backward, casts included, as in a training step.

    A processor without bf16 arithmetic can need a hundred times as long, so the first trial is a short one.
    """
    found = _try(ROWS[0], min(width, WIDEST), where)
    return found if found.bf16_ms > 2 * found.fp32_ms else _try(ROWS[1], min(width, WIDEST), where)


def _try(count: int, width: int, where: str) -> Trial:
    generator = torch.Generator().manual_seed(0)
    shapes = [(count, width), (3 * width, width), (width, 3 * width)]
    rows, wide, narrow = (torch.randn(shape, generator=generator).to(device()) for shape in shapes)
    wide, narrow = (weight.div_(width**0.5).requires_grad_() for weight in (wide, narrow))

    def block(enabled: bool) -> Tensor:
        wide.grad = narrow.grad = None
        with torch.autocast(device().type, torch.bfloat16, enabled=enabled):
            middle = torch.nn.functional.silu(torch.nn.functional.linear(rows, wide))
            out = torch.nn.functional.linear(middle, narrow)
        out.float().square().mean().backward()
        assert wide.grad is not None
        return wide.grad

    exact, rounded = block(False).clone(), block(True).clone()
    error = float((rounded - exact).norm() / exact.norm())
    fp32, bf16 = milliseconds(partial(block, False), partial(block, True))
    return Trial(round(fp32, 4), round(bf16, 4), error if math.isfinite(error) else 1.0, where)


def milliseconds(*works: Callable[[], Tensor]) -> list[float]:
    """Return the shortest time of each, measured in turns, so that a disturbance affects all of them."""
    best = [float("inf")] * len(works)
    for _ in range(6):
        for number, work in enumerate(works):
            began = time.perf_counter()
            float(work().flatten()[0])  # reading a number waits for the device
            best[number] = min(best[number], time.perf_counter() - began)
    return [1000 * seconds for seconds in best]

"""Measures the peak memory of a run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import torch

from gym_core import Run
from gym_torch.kernels import precision_probe


class Meter:
    """Measures the peak of memory in use since it was created, above what was in use then.

    On CUDA only tensors count: the peak of torch's allocator. On a CPU it is the resident memory of the process: all pages, which
    include loaded code, thread stacks, mapped files and freed memory that malloc keeps.
    """

    def __init__(self, device: torch.device) -> None:
        """Start measuring."""
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        self.before = self._now()
        clear = Path("/proc/self/clear_refs")
        if device.type != "cuda" and os.access(clear, os.W_OK):
            clear.write_text("5", encoding="ascii")  # the peak starts again at what is resident now (proc(5))

    def peak(self) -> int:
        """Return the peak in bytes."""
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated()) - self.before
        return max(0, _peak_resident() - self.before)

    def _now(self) -> int:
        if self.device.type == "cuda":
            return int(torch.cuda.memory_allocated())
        return int(psutil.Process().memory_info().rss)


def _peak_resident() -> int:
    """Return the peak resident memory of this process in bytes."""
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM:"))
        return 1024 * int(line.split()[1])
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def of_run(run: Run) -> Meter:
    """Return the meter of a run, created where there is none: loading the model creates it."""
    meter: Meter = run.notes.setdefault("meter", Meter(precision_probe.device()))
    return meter

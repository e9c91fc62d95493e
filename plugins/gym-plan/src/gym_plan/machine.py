"""The memory of this machine that is available to a run."""

from __future__ import annotations

from pathlib import Path

import psutil  # type: ignore[import-untyped]
import torch

#: Share of the memory that the tensors of a planned run may fill; the rest is for what no trace sees. On a CPU that is most of
#: all what malloc keeps of freed blocks: up to six tenths of the tensors.
MARGIN = {"cpu": 0.6}
MARGIN_ELSEWHERE = 0.9


def room(device: torch.device) -> int:
    """Return the bytes that the tensors of a run on this device may take."""
    return int(MARGIN.get(device.type, MARGIN_ELSEWHERE) * memory_at_hand(device))


def memory_at_hand(device: torch.device) -> int:
    """Return the bytes that a run on this device may use at most: of the GPU, or of the machine or its container."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info()[1])
    limits = [int(psutil.virtual_memory().total)]
    for file in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        text = file.read_text(encoding="ascii").strip() if file.is_file() else "max"
        limits += [int(text)] if text.isdigit() else []
    return min(limits)

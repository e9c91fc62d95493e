"""The memory of this machine that is available to a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import torch

#: Share of the memory that the tensors of a planned run may fill; the rest is for what no trace sees. On a CPU that is most of
#: all what malloc keeps of freed blocks: up to six tenths of the tensors.
MARGIN = {"cpu": 0.6}
MARGIN_ELSEWHERE = 0.9
#: Where Linux shows control groups, and which of them this process is in.
GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def room(device: torch.device, processes: int = 1) -> int:
    """Return the bytes that the tensors of a run may take on this device, in each of its processes on this machine."""
    shared = processes if device.type == "cpu" else 1  # a GPU has one process
    return int(MARGIN.get(device.type, MARGIN_ELSEWHERE) * memory_at_hand(device) / shared)


def memory_at_hand(device: torch.device) -> int:
    """Return the bytes that a run on this device may use at most: of the GPU, or of the machine or its container."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info()[1])
    return min([int(psutil.virtual_memory().total), *group_limits(GROUPS, OWN_GROUPS)])


def group_limits(groups: Path, own: Path) -> Iterator[int]:
    """Yield the limits in bytes of the control groups of a process, and of those around them, for all of them hold.

    `groups` is where they are shown, of version 1, 2 or both, and `own` lists those of the process.
    """
    for line in own.read_text(errors="replace").splitlines() if own.is_file() else ["0::/", "0:memory:/"]:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top, name = groups, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = groups / "memory", "memory.limit_in_bytes"
        else:
            continue
        # A container may list its groups as the host names them, and show none but its own, as the outermost.
        inside = top / path.lstrip("/") if ".." not in path.split("/") else top
        for folder in (inside, *inside.parents):
            if folder.is_relative_to(top):
                text = _text(folder / name)
                if text.isdigit():
                    yield int(text)


def _text(file: Path) -> str:
    """Return what stands in a file, nothing where it cannot be read."""
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return ""

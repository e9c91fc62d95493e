"""Sizes as people write them; without numpy, for commands that list files."""

from __future__ import annotations

import math


def written(size: float) -> str:
    """Return a number of bytes as people write it."""
    steps = min(int(math.log(max(size, 1), 1000)), 4)
    return f"{size / 1000**steps:.{min(steps, 1)}f} {('bytes', 'kB', 'MB', 'GB', 'TB')[steps]}"

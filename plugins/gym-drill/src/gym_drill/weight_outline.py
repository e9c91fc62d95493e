"""What a capsule holds of a final tensor: its shape, number format, SHA-256 of its numbers, and a few of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

LOOKS = 16  #: numbers of each tensor


def is_outline(told: Mapping[str, Any]) -> bool:
    """Whether it is what `gym_drill.weight_comparison.outline` says of a tensor. Raises ValueError for numbers that are none."""
    shape, numbers = told["shape"], [float(each) for each in told["numbers"]]
    return len(numbers) == min(LOOKS, math.prod(shape)) and isinstance(told["dtype"], str)

"""The options of block-wise optimizers, which work on some layers at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from gym_optim.config.base import AdamOptions, Groups, WholeParameters


class BlockCoordinateOptions(AdamOptions, WholeParameters):
    """AdamW on some parameters at a time; the gradients of the others go during the backward pass."""

    def keeps_gradients(self) -> bool:
        """Those of what works at a time."""
        return False

    def updates_in_backward(self) -> bool:
        """Never."""
        return False

    def gradient_bytes(self, parameters: Groups) -> int:
        """Return the bytes of the gradients of what works at a time: half of its moments."""
        return self.declared_bytes(parameters) // 2


def block_bytes(parameters: Groups, block: Callable[[Mapping[str, Any], str], str | None]) -> dict[str | None, int]:
    """Return the bytes of two fp32 moments by block."""
    sizes: dict[str | None, int] = {}
    for group in parameters:
        for name, shape in group["params"]:
            sizes[block(group, name)] = sizes.get(block(group, name), 0) + 8 * prod(shape)
    return sizes

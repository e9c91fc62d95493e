"""Codes packed into 32-bit integers, as in GPTQ and AWQ, and groups of columns that share a scale."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

BITS = 32  #: of the integers that codes are packed in
#: Where the codes of eight columns lie in the 32 bits that AWQ packs them in.
_AWQ = (0, 4, 1, 5, 2, 6, 3, 7)


def unpacked(packed: Tensor, bits: int) -> Tensor:
    """Return the codes `[n, m 32 / bits]` in integers `[n, m]`, the lowest bits first."""
    if BITS % bits:
        flat = torch.arange(BITS, device=packed.device, dtype=torch.int32)
        single = ((packed[..., None] >> flat) & 1).flatten(-2)  # [n, 32 m]
        whole = single[..., : single.shape[-1] // bits * bits].unflatten(-1, (-1, bits))
        return (whole << flat[:bits]).sum(-1, dtype=torch.int32)
    shifts = torch.arange(0, BITS, bits, device=packed.device, dtype=torch.int32)
    return ((packed[..., None] >> shifts) & (2**bits - 1)).flatten(-2)


def reordered(codes: Tensor) -> Tensor:
    """Undo the order in which AWQ packs columns."""
    return codes.unflatten(-1, (-1, len(_AWQ)))[..., _AWQ].flatten(-2)


def groups(count: int, size: int, device: torch.device) -> Tensor:
    """Return the group number of each of `count` columns, `[count]`."""
    return torch.arange(size, device=device) // (-(-size // count))


def blocks(shape: Sequence[int], block: Sequence[int]) -> tuple[int, ...]:
    """Return how many blocks of this many rows and columns a matrix has, the last ones of a side smaller."""
    return tuple(-(-size // length) for size, length in zip(shape, block, strict=True))


def spread(values: Tensor, block: Sequence[int], shape: Sequence[int]) -> Tensor:
    """Return `[out, in]`: for each weight the value of its block, of `[blocks of rows, blocks of columns]`."""
    rows = values.repeat_interleave(block[0], 0)[: shape[0]]
    return rows.repeat_interleave(block[1], 1)[:, : shape[1]]

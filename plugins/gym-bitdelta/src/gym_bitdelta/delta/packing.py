"""How codes are laid out in bytes: one rule for files, for the runtime, and for kernels.

A matrix `[rows, columns]` of codes of `bits` bits becomes `bits` planes of bits, `[bits, rows, ceil(columns / 8)]` in uint8:

    bit j of the code of (row, column)  =  bit (column % 8) of packed[j, row, column // 8]

So bits run along the columns, which are the inputs of a linear layer; every row begins with a new byte, the first column in
the lowest bit; what is left of the last byte is zero. Plane 0 holds the lowest bit of whole numbers; of several planes of signs
it holds the one with the largest scale. On a machine of little-endian words the bytes of a row are also its words of 16, 32 or 64
bits, the first column in the lowest bit, where a reader pads them.

Codes of three values take five to a byte, in base 3: `ceil(columns / 5)` bytes a row, the first column in the lowest place.

Leading dimensions, such as those of stacked matrices, stay as they are. Nothing here knows what codes stand for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gym_bitdelta.delta.packing_sizes import TRITS


def pack_bits(bits: Tensor) -> Tensor:
    """Return bits `[..., columns]` (bool) as bytes `[..., ceil(columns / 8)]` (uint8)."""
    padded = torch.nn.functional.pad(bits.to(torch.uint8), (0, -bits.shape[-1] % 8))
    places = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=bits.device)
    return (padded.unflatten(-1, (-1, 8)) * places).sum(-1, dtype=torch.uint8)


def unpack_bits(packed: Tensor, columns: int) -> Tensor:
    """Return what `pack_bits` took: bits `[..., columns]` (bool)."""
    places = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=packed.device)
    return (packed[..., None] & places).ne(0).flatten(-2)[..., :columns]


def pack_codes(codes: Tensor, bits: int) -> Tensor:
    """Return codes `[..., columns]` (uint8, below 2^bits) as planes `[bits, ..., ceil(columns / 8)]` (uint8)."""
    places = torch.arange(bits, device=codes.device).view(-1, *(1,) * codes.dim())
    return pack_bits((codes >> places & 1).bool())


def pack_trits(trits: Tensor) -> Tensor:
    """Return codes `[..., columns]` (uint8: 0, 1 or 2) as bytes `[..., ceil(columns / 5)]` (uint8)."""
    padded = torch.nn.functional.pad(trits, (0, -trits.shape[-1] % TRITS))
    places = torch.tensor([1, 3, 9, 27, 81], dtype=torch.uint8, device=trits.device)
    return (padded.unflatten(-1, (-1, TRITS)) * places).sum(-1, dtype=torch.uint8)


def unpack_trits(packed: Tensor, columns: int) -> Tensor:
    """Return what `pack_trits` took: codes `[..., columns]` (uint8)."""
    places = torch.tensor([1, 3, 9, 27, 81], dtype=torch.uint8, device=packed.device)
    return (packed[..., None].div(places, rounding_mode="floor") % 3).flatten(-2)[..., :columns]

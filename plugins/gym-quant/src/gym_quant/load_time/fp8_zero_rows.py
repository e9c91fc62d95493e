"""What libraries make of rows of zeros in 8 bits of floating point."""

from __future__ import annotations

from torch import Tensor


def zeros_kept(codes: Tensor) -> Tensor:
    """Return codes with 0 in the place of what is not a number: a row of zeros was divided by its scale of 0."""
    return codes.float().nan_to_num(0.0).to(codes.dtype)

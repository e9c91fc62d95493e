"""What a run computes in: products of matrices are rounded to it, weights that train stay fp32."""

from __future__ import annotations

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}  #: by what `train.precision` calls them


def rounding(device: torch.device, precision: str) -> torch.autocast:
    """Return the context in which products on a device are rounded to a precision; in fp32 they are not."""
    rounded = precision != "fp32"
    return torch.autocast(device.type, DTYPES[precision] if rounded else None, enabled=rounded)

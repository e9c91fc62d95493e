"""Kernels of decoding steps on a CPU, in fp32 and bf16: products of few rows, and attention to a cache (`decoding_kernels.c`).

The libraries that torch calls repack a weight before they multiply, which takes longer than a product of few rows; here it is
read once, in place. Attention takes rows of different lengths without padding, stores new keys and values itself, and reads a
prompt that several rows continue once for all of them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gym_core import GymError
from gym_torch.kernels import native_code
from gym_torch.kernels.kernel_functions import Kept, KernelFunctions, Scores

SOURCE = Path(__file__).with_suffix(".c")
FLAGS = (*native_code.THIS_MACHINE, "-fno-math-errno", "-fno-trapping-math")
#: By the precision of what is multiplied: how the file is compiled for it. Sums are in fp32.
PRECISIONS: dict[torch.dtype, tuple[str, ...]] = {torch.float32: (), torch.bfloat16: ("-DGYM_BF16",)}

_INT, _LONG, _AT, _FLOAT = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p, ctypes.c_float
_TENSORS = ("query", "key", "value", "out", "keys", "values", "prompt_keys", "prompt_values")
_STRIDES = ("query_token", "query_head", "key_token", "key_head", "value_token", "value_head")
_KEPT = ("row", "head", "prompt_row", "prompt_head")
_PLACES = ("first", "lengths", "members", "bounds", "prompt", "prompt_lengths")
_SIZES = ("groups", "heads", "kv_heads", "dim", "window", "threads")


class _Call(ctypes.Structure):
    """The `Call` of `decoding_kernels.c`."""

    _fields_ = [
        *((name, _AT) for name in _TENSORS),
        *((name, _LONG) for name in (*_STRIDES, *_KEPT)),
        *((name, _AT) for name in _PLACES),
        *((name, _LONG) for name in _SIZES),
        ("scale", _FLOAT),
        ("cap", _FLOAT),
    ]


class Kernel:
    """The compiled library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Wrap a library. Raises OSError where its version differs."""
        if library.gym_call_bytes() != ctypes.sizeof(_Call):
            raise OSError("this library does not run here")
        library.gym_kernel.restype = ctypes.c_char_p
        library.gym_product.argtypes = (_AT, _LONG, _LONG, _AT, _LONG, _LONG, _AT, _AT, _INT)
        library.gym_product.restype = None
        library.gym_attend.argtypes = (_AT,)
        self.name: str = library.gym_kernel().decode()  #: the instructions it was compiled for
        self._product: Any = library.gym_product
        self._attend: Any = library.gym_attend

    def product(self, given: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return `given weight^T + bias`: `[..., inputs]` by `[outputs, inputs]`."""
        rows = given.reshape(-1, given.shape[-1])
        rows = rows if rows.stride(1) == 1 else rows.contiguous()
        weight, bias = weight.contiguous(), None if bias is None else bias.contiguous()
        out = given.new_empty(*given.shape[:-1], len(weight))
        at = None if bias is None else bias.data_ptr()
        size = len(rows), weight.data_ptr(), *weight.shape
        self._product(rows.data_ptr(), rows.stride(0), *size, at, out.data_ptr(), torch.get_num_threads())
        return out

    def attend(self, query: Tensor, key: Tensor, value: Tensor, kept: Kept, rule: Scores) -> Tensor:
        """Attend to what is kept: `[tokens, heads, 1, head_dim]`, as `KernelFunctions.cached_attention` promises."""
        tokens, heads, _, dim = query.shape
        query, key, value = (part if part.stride(3) == 1 else part.contiguous() for part in (query, key, value))
        out = query.new_empty(tokens, 1, heads, dim)
        given = query, key, value, out, kept.keys, kept.values, kept.prompt_keys, kept.prompt_values
        strides = (stride for part in (query, key, value) for stride in part.stride()[:2])
        places = [getattr(kept.places, name).data_ptr() for name in _PLACES]
        call = _Call(
            *(part.data_ptr() for part in given),
            *strides,
            *kept.keys.stride()[:2],
            *kept.prompt_keys.stride()[:2],
            *places,
            len(kept.places.prompt),
            heads,
            key.shape[1],
            dim,
            rule.window or 0,
            torch.get_num_threads(),
            rule.scale,
            rule.softcap or 0.0,
        )
        if self._attend(ctypes.addressof(call)):
            raise GymError(f"no memory for the attention of {tokens} tokens")
        return out.transpose(1, 2)


@cache
def kernel(dtype: torch.dtype = torch.float32) -> Kernel | None:
    """Return the kernel compiled for this machine and a dtype; None where it cannot be compiled."""
    found = native_code.library(SOURCE, (*FLAGS, *PRECISIONS[dtype]))
    try:
        return Kernel(found) if found else None
    except OSError:
        return None


def functions() -> Sequence[KernelFunctions]:
    """Return the kernel functions; none where nothing could be compiled."""
    return tuple(_functions(own, dtype) for dtype in PRECISIONS if (own := kernel(dtype)) is not None)


@cache
def _functions(own: Kernel, dtype: torch.dtype) -> KernelFunctions:
    version, dtypes = native_code.text(SOURCE).decode(), frozenset({dtype})
    return KernelFunctions(
        own.name, version, frozenset({"cpu"}), dtypes, product=own.product, cached_attention=own.attend
    )

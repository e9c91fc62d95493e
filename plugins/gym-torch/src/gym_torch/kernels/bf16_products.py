"""Products of linear layers in bf16 on a CPU, for many rows, with sums of several products in one pass (`bf16_products.c`).

torch rounds each product and adds it to what is there; here `x W^T + scaling (x A^T) B^T` is rounded once, and a weight in fp32
while it is laid out. It is an operator of torch, so that what counts, keeps or plans products sees it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gym_torch.kernels import native_code
from gym_torch.kernels.kernel_functions import KernelFunctions, LinearProducts

SOURCE = Path(__file__).with_suffix(".c")
FLAGS = (*native_code.THIS_MACHINE, "-DGYM_BF16")
MOST = 4  #: products in a sum
WIDE, SUMS = 64, 192 * 8 * 64  #: columns that are laid out together, and sums that a thread keeps, as the file has them

_LONG, _AT = ctypes.c_int64, ctypes.c_void_p


class _Product(ctypes.Structure):
    """The `Product` of `bf16_products.c`."""

    _sizes = ("left_stride", "right_stride", "depth", "along", "wide")
    _fields_ = [("left", _AT), ("right", _AT), *((name, _LONG) for name in _sizes), ("laid", _AT)]


class _Sum(ctypes.Structure):
    """The `Sum` of `bf16_products.c`."""

    _fields_ = [
        *((name, _LONG) for name in ("rows", "columns", "count")),
        *((name, _AT) for name in ("bias", "out", "scratch")),
        ("scale", ctypes.c_float),
        ("products", _Product * MOST),
    ]


LIBRARY = torch.library.Library("gym", "FRAGMENT")
LIBRARY.define("sum_of_products(Tensor[] left, Tensor[] right, float scale, Tensor? bias) -> Tensor")


@cache
def kernel() -> Any:
    """Return the function compiled for this machine; None where it cannot be compiled, or the processor has no such products."""
    library = native_code.library(SOURCE, FLAGS)
    if library is None:
        return None
    library.gym_kernel.restype = ctypes.c_char_p
    if library.gym_kernel() != b"avx512_bf16":
        return None
    library.gym_sum.argtypes, library.gym_sum.restype = (_AT, ctypes.c_int), None
    return library.gym_sum


def summed(left: Sequence[Tensor], right: Sequence[Tensor], scale: float = 1.0, bias: Tensor | None = None) -> Tensor:
    """Return `scale left[0] right[0] + left[1] right[1] + ... + bias` in bf16, as `LinearProducts.summed` has it."""
    found: Tensor = torch.ops.gym.sum_of_products(left, right, scale, bias)
    return found


def _forward(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return summed([rows], [weight.T], 1.0, bias)


def _to_input(by_out: Tensor, weight: Tensor) -> Tensor:
    return summed([by_out], [weight])


@cache
def functions() -> Sequence[KernelFunctions]:
    """Return the products, where they can be compiled."""
    if kernel() is None:
        return ()
    text, many = SOURCE.read_text(encoding="utf-8"), LinearProducts(_forward, _to_input, summed=summed)
    dtypes = frozenset({torch.bfloat16})
    return (KernelFunctions("avx512_bf16", text, frozenset({"cpu"}), dtypes, without_data=True, linear=many),)


def _sum(left: Sequence[Tensor], right: Sequence[Tensor], scale: float, bias: Tensor | None) -> Tensor:
    out = left[0].new_empty(len(left[0]), right[0].shape[1])
    if not out.numel():
        return out
    rows, factors = [_rows(each) for each in left], [_dense(each) for each in right]
    laid = [_room(each) for each in factors]
    scratch = torch.empty(torch.get_num_threads() * SUMS)
    bias = None if bias is None else bias.contiguous()
    places = [None if each is None else each.data_ptr() for each in (bias, out, scratch)]
    call = _Sum(*out.shape, len(rows), *places, scale)
    for number, (own, factor, room) in enumerate(zip(rows, factors, laid, strict=True)):
        along = int(factor.stride(1) != 1)
        sizes = own.stride(0), factor.stride(along), len(factor), along, factor.dtype == torch.float32
        call.products[number] = _Product(own.data_ptr(), factor.data_ptr(), *sizes, room.data_ptr())
    kernel()(ctypes.byref(call), torch.get_num_threads())
    return out


def _rows(given: Tensor) -> Tensor:
    """Return rows of an even number of columns, whose numbers stand side by side: two are read at once."""
    if given.shape[1] % 2:
        return nn.functional.pad(given, (0, 1))
    return given if given.stride(1) == 1 else given.contiguous()


def _dense(factor: Tensor) -> Tensor:
    """Return a factor in one of whose dimensions numbers stand side by side."""
    return factor if 1 in factor.stride() else factor.contiguous()


def _room(factor: Tensor) -> Tensor:
    depth, columns = factor.shape
    return torch.empty(-(-columns // WIDE) * WIDE * (depth + depth % 2), dtype=torch.bfloat16)


LIBRARY.impl("sum_of_products", _sum, "CPU")


@torch.library.register_fake("gym::sum_of_products", lib=LIBRARY)
def _without_data(left: Sequence[Tensor], right: Sequence[Tensor], _scale: float, _bias: Tensor | None) -> Tensor:
    return left[0].new_empty(len(left[0]), right[0].shape[1])

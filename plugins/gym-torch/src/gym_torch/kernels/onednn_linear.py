"""Products of linear layers by oneDNN on a CPU in fp32, for few rows and for many.

torch multiplies fp32 matrices with MKL, which leaves the widest registers of some processors unused; oneDNN uses them. Where rows
are many, the weight is laid out for them first, which takes little.

oneDNN compiles code for each number of rows, and keeps that of a thousand products, with gaps in memory between: a gigabyte after
some hundred steps of different length. So of many rows it is given a number that comes again, and torch the few that are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn

from gym_torch.kernels.kernel_functions import KernelFunctions, LinearProducts


def few_rows(given: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `given weight^T + bias`, `[..., inputs]` by `[outputs, inputs]`, as `KernelFunctions.product` promises."""
    found: Tensor = torch.ops.mkldnn._linear_pointwise(given, weight, bias, "none", [], "")
    return found


def even(count: int) -> int:
    """Return how many of `count` rows, 16 or more, oneDNN is given: at least 8 of 9 parts, of which an octave has 8 numbers."""
    return count - count % (1 << count.bit_length() - 4)


def laid_out(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the same of many `rows` `[n, inputs]`, by a copy of the weight that is laid out for them."""
    count = even(len(rows))
    found = few_rows(rows[:count], torch.ops.mkldnn._reorder_linear_weight(weight, count), bias)
    if count == len(rows):
        return found
    out = found.new_empty(len(rows), len(weight))
    out[:count] = found
    out[count:] = nn.functional.linear(rows[count:], weight, bias)
    return out


def to_input(by_out: Tensor, weight: Tensor) -> Tensor:
    """Return `by_out weight`, as `LinearProducts` has it."""
    return laid_out(by_out, weight.T)


def to_weight(by_out: Tensor, rows: Tensor) -> Tensor:
    """Return `by_out^T rows`, as `LinearProducts` has it."""
    count, shape = even(len(rows)), rows.new_empty(by_out.shape[1], rows.shape[1])
    given = by_out[:count].to_mkldnn(), rows[:count].to_mkldnn()
    found, _ = torch.ops.aten.mkldnn_linear_backward_weights(*given, shape, False)
    made: Tensor = found.to_dense()
    return made if count == len(rows) else made.addmm_(by_out[count:].T, rows[count:])


@cache
def functions() -> Sequence[KernelFunctions]:
    """Return the products, where torch has oneDNN."""
    if not torch.backends.mkldnn.is_available():
        return ()
    many = LinearProducts(laid_out, to_input, to_weight)
    fp32 = frozenset({torch.float32})
    return (KernelFunctions("onednn", torch.__version__, frozenset({"cpu"}), fp32, product=few_rows, linear=many),)

"""Products of linear layers by oneDNN on a CPU in fp32, for few rows and for many.

torch multiplies fp32 matrices with MKL, which leaves the widest registers of some processors unused; oneDNN uses them. Where rows
are many, the weight is laid out for them first, which takes little and makes all numbers of rows equally fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from gym_torch.kernels.kernel_functions import KernelFunctions, LinearProducts


def few_rows(given: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `given weight^T + bias`, `[..., inputs]` by `[outputs, inputs]`, as `KernelFunctions.product` promises."""
    found: Tensor = torch.ops.mkldnn._linear_pointwise(given, weight, bias, "none", [], "")
    return found


def laid_out(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the same of many `rows` `[n, inputs]`, by a copy of the weight that is laid out for them."""
    return few_rows(rows, torch.ops.mkldnn._reorder_linear_weight(weight, len(rows)), bias)


def to_input(by_out: Tensor, weight: Tensor) -> Tensor:
    """Return `by_out weight`, as `LinearProducts` has it."""
    return laid_out(by_out, weight.T)


def to_weight(by_out: Tensor, rows: Tensor) -> Tensor:
    """Return `by_out^T rows`, as `LinearProducts` has it."""
    shape = rows.new_empty(by_out.shape[1], rows.shape[1])
    found, _ = torch.ops.aten.mkldnn_linear_backward_weights(by_out.to_mkldnn(), rows.to_mkldnn(), shape, False)
    made: Tensor = found.to_dense()
    return made


@cache
def functions() -> Sequence[KernelFunctions]:
    """Return the products, where torch has oneDNN."""
    if not torch.backends.mkldnn.is_available():
        return ()
    many = LinearProducts(laid_out, to_input, to_weight)
    fp32 = frozenset({torch.float32})
    return (KernelFunctions("onednn", torch.__version__, frozenset({"cpu"}), fp32, product=few_rows, linear=many),)

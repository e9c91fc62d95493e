"""Which library multiplies many rows by the weight of a linear layer, forward and back, as training does.

The forward pass of a layer is replaced, and computes the same, by torch or by a kernel that a trial finds faster.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gym_torch.kernels import onednn_linear
from gym_torch.kernels.kernel_functions import LinearProducts, spelled
from gym_torch.kernels.kernel_trials import Choices, Work
from gym_torch.patched_forward import plain, replace

ROWS = 512  #: from which on a kernel is asked for
NARROWEST = 256  #: inputs and outputs, below which products take no time
TRIED = 1257  #: rows of a trial, 3 * 419: a step has any number, and some libraries are slow at those without convenient divisors
WIDEST = 512  #: inputs and outputs of a trial
CHOICES = Choices("linear_products", onednn_linear.functions)  #: of this process
TORCH = LinearProducts(
    nn.functional.linear, lambda by_out, weight: by_out @ weight, lambda by_out, rows: by_out.T @ rows
)


def multiply(model: nn.Module) -> None:
    """Have kernels multiply in the linear layers of a model. Twice is as good as once."""
    for layer in model.modules():
        if type(layer) is nn.Linear and plain(layer):
            replace(layer, _forward)


def linear(given: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `given weight^T + bias`, `[..., inputs]` by `[outputs, inputs]`, in the precision of autocast or else of `given`."""
    kind = given.device.type
    rounded = torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if rounded else given.dtype
    products = chosen(given, weight, dtype) if rounded or given.dtype == weight.dtype else None
    if products is None:
        return nn.functional.linear(given, weight, bias)
    found: Tensor = _Linear.apply(products, given.to(dtype), weight, bias)  # type: ignore[no-untyped-call]
    return found


def chosen(given: Tensor, weight: Tensor, dtype: torch.dtype) -> LinearProducts | None:
    """Return what multiplies `given` `[..., inputs]` by a weight `[outputs, inputs]` where both are rounded to `dtype`.

    None where torch does: with few rows, narrow layers, tensors that are more than numbers, and where a trial finds it faster.
    """
    if not CHOICES.any() or type(given) is not Tensor or type(weight) not in (Tensor, nn.Parameter):
        return None  # asked first: to whoever traces a layer, its number of rows may be anything
    if given.numel() < ROWS * given.shape[-1] or min(weight.shape) < NARROWEST:
        return None
    if not {given.dtype, weight.dtype} <= {dtype, torch.float32}:
        return None
    outputs, inputs = (min(WIDEST, size) for size in weight.shape)

    def work(own: LinearProducts) -> Work:
        draws = torch.Generator().manual_seed(0)
        shapes = (TRIED, inputs), (outputs, inputs), (TRIED, outputs)
        drawn = [torch.randn(shape, generator=draws).to(given.device, dtype) for shape in shapes]
        exact = [part.double() for part in drawn]
        return partial(_all, own, *drawn), partial(_all, TORCH, *drawn), partial(_all, TORCH, *exact)

    name = f"linear of {inputs} to {outputs} {spelled(dtype)}"  # alike for weights that train and those of a reference
    return CHOICES.choose(lambda each: each.linear, name, (given.detach()[:0].to(dtype),), work)


def _all(how: LinearProducts, given: Tensor, weight: Tensor, by_out: Tensor) -> list[Tensor]:
    return [how.forward(given, weight, None), how.to_input(by_out, weight), how.to_weight(by_out, given)]


def _forward(layer: nn.Linear, given: Tensor) -> Tensor:
    return linear(given, layer.weight, layer.bias)


class _Linear(torch.autograd.Function):
    """`given weight^T + bias`, in the dtype of `given`, to which the others are rounded.

    The rounded weight is made again in the backward pass, so it is not kept. What comes out is no view: some models clamp it in
    place.
    """

    @staticmethod
    def forward(ctx: Any, products: LinearProducts, given: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows, dtype = given.reshape(-1, given.shape[-1]), given.dtype
        out = products.forward(rows, weight.to(dtype), None if bias is None else bias.to(dtype))
        ctx.save_for_backward(rows if ctx.needs_input_grad[2] else None, weight)
        ctx.products, ctx.shape, ctx.dtypes = products, given.shape, (dtype, None if bias is None else bias.dtype)
        found: Tensor = torch.ops.aten._unsafe_view(out, [*given.shape[:-1], len(weight)])
        return found

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, by_out: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        dtype, bias = ctx.dtypes
        by_rows = by_out.reshape(-1, len(weight)).contiguous()
        by_given = by_weight = by_bias = None
        if ctx.needs_input_grad[1]:
            by_given = ctx.products.to_input(by_rows, weight.to(dtype)).view(ctx.shape)
        if ctx.needs_input_grad[2]:
            by_weight = ctx.products.to_weight(by_rows, rows).to(weight.dtype)
        if ctx.needs_input_grad[3]:
            by_bias = by_rows.sum(0).to(bias)
        return None, by_given, by_weight, by_bias

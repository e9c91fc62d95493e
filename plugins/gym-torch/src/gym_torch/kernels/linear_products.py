"""Which library multiplies many rows by the weight of a linear layer, forward and back, as training does.

The forward pass of a layer is replaced, and computes the same, by torch or by a kernel that a trial finds faster.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import once_differentiable

from gym_torch.kernels import bf16_products, onednn_linear
from gym_torch.kernels.kernel_functions import LinearProducts, spelled
from gym_torch.kernels.kernel_trials import Choices, Work
from gym_torch.patched_forward import plain, replace

ROWS = 512  #: from which on a kernel is asked for
NARROWEST = 256  #: inputs and outputs, below which products take no time
TRIED = 1257  #: rows of a trial, 3 * 419: a step has any number, and some libraries are slow at those without convenient divisors
WIDEST = 512  #: inputs and outputs of a trial
CHOICES = Choices(
    "linear_products", lambda: (*onednn_linear.functions(), *bf16_products.functions())
)  #: of this process
TORCH = LinearProducts(nn.functional.linear, lambda by_out, weight: by_out @ weight)


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
    kinds = type(given), type(weight)
    if not CHOICES.any() or not {*kinds} <= {Tensor, nn.Parameter, FakeTensor} or kinds[0] is nn.Parameter:
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
        return partial(_all, own, own, *drawn), partial(_all, TORCH, own, *drawn), partial(_all, TORCH, own, *exact)

    name = f"linear of {inputs} to {outputs} {spelled(dtype)}"  # alike for weights that train and those of a reference
    return CHOICES.choose(lambda each: each.linear, name, (given.detach()[:0].to(dtype),), work)


def forward(how: LinearProducts, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `rows weight^T + bias`, with a weight that may be of more digits than rows."""
    if how.summed:
        return how.summed([rows], [weight.T], 1.0, bias)
    return how.forward(rows, weight.to(rows.dtype), bias)


def to_input(how: LinearProducts, by_out: Tensor, weight: Tensor) -> Tensor:
    """Return `by_out weight`, with a weight that may be of more digits."""
    if how.summed:
        return how.summed([by_out], [weight], 1.0, None)
    return how.to_input(by_out, weight.to(by_out.dtype))


def to_weight(how: LinearProducts, by_out: Tensor, rows: Tensor) -> Tensor:
    """Return `by_out^T rows`."""
    return how.to_weight(by_out, rows) if how.to_weight else by_out.T @ rows


def _all(how: LinearProducts, tried: LinearProducts, given: Tensor, weight: Tensor, by_out: Tensor) -> list[Tensor]:
    """Return the products of which one library that is tried has its own."""
    found = [how.forward(given, weight, None), how.to_input(by_out, weight)]
    if tried.to_weight:
        found.append(to_weight(how, by_out, given))
    if tried.summed:  # as in a layer with an adapter
        half = given.shape[1] // 2
        left, right = (given[:, :half], given[:, half:]), (weight[:, :half].T, weight[:, half:].T)
        if how.summed:
            found.append(how.summed(left, [right[0], right[1].float()], 2.0, None))
        else:
            found.append((left[1] @ right[1]).addmm_(left[0], right[0], alpha=2.0))
    return found


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
        out = forward(products, rows, weight, None if bias is None else bias.to(dtype))
        ctx.save_for_backward(rows if ctx.needs_input_grad[2] else None, weight)
        ctx.products, ctx.shape, ctx.bias = products, given.shape, None if bias is None else bias.dtype
        found: Tensor = torch.ops.aten._unsafe_view(out, [*given.shape[:-1], len(weight)])
        return found

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, by_out: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        by_rows = by_out.reshape(-1, len(weight)).contiguous()
        by_given = by_weight = by_bias = None
        if ctx.needs_input_grad[1]:
            by_given = to_input(ctx.products, by_rows, weight).view(ctx.shape)
        if ctx.needs_input_grad[2]:
            by_weight = to_weight(ctx.products, by_rows, rows).to(weight.dtype)
        if ctx.needs_input_grad[3]:
            by_bias = by_rows.sum(0).to(ctx.bias)
        return None, by_given, by_weight, by_bias

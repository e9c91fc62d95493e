"""Tiling: token-wise parts of a layer are computed in slices of the row, forward and backward.

A feed-forward network is several times as wide as its layer. Computed in slices, of which only the input is saved, it needs
memory for one slice, however long the row is (tiled MLP, arXiv:2506.13996). The same holds for norms, which save several copies
of their input.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import get_device_states, set_device_states

from gym_torch.patched_forward import surround, takes_one

TOKENS = 1024  #: of a slice: enough for matrix products at full speed, and little beside a row that is long


def tile(layer: nn.Module, tokens: int = TOKENS) -> list[nn.Module]:
    """Have the token-wise parts of a layer compute `tokens` tokens at a time, in place; return those parts.

    Shorter rows `[rows, tokens, ...]` are not cut. Results are the same except for rounding, since the gradient of a weight
    becomes a sum over slices, and except for dropout within such a part, which is drawn for each slice. Modules that are
    neither a network of linear layers nor a norm, such as a mixture of experts, are left as they are.
    """
    sliced = torch.compiler.disable(_sliced)  # how many slices there are is decided anew for every row
    found = list(_token_wise(layer))
    for part in found:
        surround(part, sliced)
        part.slice_tokens = tokens  # type: ignore[assignment]
    return found


def _sliced(part: Any, row: Tensor) -> Tensor:
    """Compute `[rows, tokens, ...]`, or `[tokens, dim]`, slice by slice."""
    if row.dim() < 2 or row.shape[_along(row)] <= part.slice_tokens:
        result: Tensor = part.whole_forward(row)
    elif torch.is_grad_enabled():
        result = _Sliced.apply(row, part, *_trained(part))  # type: ignore[no-untyped-call]
    else:
        result = _computed(part, row)
    return result


def _along(row: Tensor) -> int:
    """Return the dimension of tokens."""
    return min(row.dim() - 2, 1)


def _trained(part: nn.Module) -> list[Tensor]:
    return [weight for weight in part.parameters() if weight.requires_grad]


def _computed(part: Any, row: Tensor) -> Tensor:
    """Compute without saving anything, writing slices into one tensor to avoid fragmentation."""
    along = _along(row)
    slices = row.split(part.slice_tokens, along)
    first = part.whole_forward(slices[0])
    whole: Tensor = first.new_empty((*row.shape[: along + 1], *first.shape[along + 1 :]))
    places = whole.split(part.slice_tokens, along)
    for place, found in zip(places, chain([first], map(part.whole_forward, slices[1:])), strict=True):
        place.copy_(found)
    return whole


class _Sliced(torch.autograd.Function):
    """Saves only the row, and recomputes each slice in the backward pass."""

    @staticmethod
    def forward(ctx: Any, row: Tensor, part: Any, *weights: Tensor) -> Tensor:
        device = row.device.type
        ctx.part, ctx.random = part, (torch.get_rng_state(), *get_device_states(row))
        ctx.autocast = device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
        ctx.save_for_backward(row)
        return _computed(part, row)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_whole: Tensor) -> tuple[Tensor | None, ...]:
        (row,), part, weights = ctx.saved_tensors, ctx.part, _trained(ctx.part)
        state, devices, states = ctx.random
        by_row = torch.empty_like(row) if ctx.needs_input_grad[0] else None
        by_weights: list[Tensor | None] = [None] * len(weights)
        slices = partial(torch.Tensor.split, split_size=part.slice_tokens, dim=_along(row))
        by_slices = [None] * len(slices(row)) if by_row is None else slices(by_row)
        with (
            torch.random.fork_rng(devices, device_type=row.device.type),
            torch.autocast(*ctx.autocast),
            torch.enable_grad(),
        ):
            torch.set_rng_state(state)
            set_device_states(devices, states, device_type=row.device.type)
            for each, by_out, by_each in zip(slices(row), slices(by_whole), by_slices, strict=True):
                inputs = [each.detach().requires_grad_(), *weights]
                out = part.whole_forward(inputs[0])
                by_slice, *found = torch.autograd.grad(out, inputs, by_out, allow_unused=True)
                if by_each is not None:
                    by_each.copy_(by_slice)
                by_weights = [_sum(*pair) for pair in zip(by_weights, found, strict=True)]
        return by_row, None, *by_weights


def _sum(total: Tensor | None, found: Tensor | None) -> Tensor | None:
    """Add in place."""
    return found if total is None else total if found is None else total.add_(found)


def _token_wise(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the largest submodules that compute each token independently."""
    for child in module.children():
        if takes_one(child) and (_is_norm(child) or _is_feed_forward(child)):
            yield child
        else:
            yield from _token_wise(child)


def _is_norm(module: nn.Module) -> bool:
    weights = list(module.parameters())
    return not list(module.children()) and bool(weights) and all(weight.dim() == 1 for weight in weights)


def _is_feed_forward(module: nn.Module) -> bool:
    """Whether its parameters are those of several linear layers, and of nothing else."""
    shapes = [[weight.dim() for weight in part.parameters(recurse=False)] for part in module.modules()]
    lists = any(isinstance(part, nn.ModuleList) for part in module.modules())
    matrices = sum(dims in ([2], [2, 1]) for dims in shapes)
    return matrices > 1 and not lists and all(dims in ([], [2], [2, 1]) for dims in shapes)

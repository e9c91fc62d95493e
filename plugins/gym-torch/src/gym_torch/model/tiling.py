"""Parts of a layer that treat every token alike, computed some tokens at a time, and again so in the backward pass.

A feed-forward network is several times as wide as its layer. Computed over slices of the row, with nothing kept of a slice but
its input, it needs room for one slice, however long the row is (tiled MLP, arXiv:2506.13996). The same goes for norms, which
keep several copies of what they are given.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

TOKENS = 1024  #: of a slice: enough for matrix products at full speed, and little beside a row that is long


def tile(layer: nn.Module, tokens: int = TOKENS) -> list[nn.Module]:
    """Have the token-wise parts of a layer compute `tokens` at a time, in place; return those parts.

    A row `[rows, tokens, ...]` that is no longer is left alone. The numbers are the same but for rounding, for the gradient of
    a weight is then a sum over slices, and but for dropout within such a part, which is drawn slice by slice. Whatever is not
    plainly a network of linear layers or a norm is left alone too, a mixture of experts for one.
    """
    sliced = torch.compiler.disable(_sliced)  # how many slices there are is decided anew for every row
    found = list(_token_wise(layer))
    for part in found:
        if "whole_forward" not in vars(part):  # bound methods, so that a copy of the layer has its own
            part.whole_forward, part.slice_tokens = part.forward, tokens
            part.forward = MethodType(sliced, part)
    return found


def _sliced(part: Any, row: Tensor) -> Tensor:
    """Compute `[rows, tokens, ...]` slice by slice."""
    whole, tokens = part.whole_forward, part.slice_tokens
    if row.shape[1] <= tokens:
        result: Tensor = whole(row)
        return result
    slices = row.split(tokens, dim=1)
    if not torch.is_grad_enabled():
        return torch.cat([whole(each) for each in slices], dim=1)
    return torch.cat([checkpoint(whole, each, use_reentrant=False) for each in slices], dim=1)


def _token_wise(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the largest parts of a module that compute each token by itself."""
    for child in module.children():
        if _takes_one(child) and (_is_norm(child) or _is_feed_forward(child)):
            yield child
        else:
            yield from _token_wise(child)


def _takes_one(module: nn.Module) -> bool:
    """Whether a module is given one tensor and nothing else: no positions, mask or cache."""
    options = inspect.signature(module.forward).parameters.values()
    return [option.kind for option in options] == [inspect.Parameter.POSITIONAL_OR_KEYWORD]


def _is_norm(module: nn.Module) -> bool:
    weights = list(module.parameters())
    return not list(module.children()) and bool(weights) and all(weight.dim() == 1 for weight in weights)


def _is_feed_forward(module: nn.Module) -> bool:
    """Whether there are several matrices, perhaps with biases, and beside them only what has no weights."""
    shapes = [[weight.dim() for weight in part.parameters(recurse=False)] for part in module.modules()]
    lists = any(isinstance(part, nn.ModuleList) for part in module.modules())
    matrices = sum(dims in ([2], [2, 1]) for dims in shapes)
    return matrices > 1 and not lists and all(dims in ([], [2], [2, 1]) for dims in shapes)

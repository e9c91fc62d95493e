"""Which layer stands in the place of each module of a base: found out by what the module does with its weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import linear
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from gym_bitdelta.runtime.layers import Layer, Linear, Lookup, Norm
from gym_bitdelta.runtime.row_tenants import Names
from gym_torch.quantization.weights import Stored

PROBED = 3  #: tokens of a row that shows how inputs are laid out


def attach(model: nn.Module) -> list[Layer]:
    """Put a layer in the place of the `forward` of every module that has weights of its own."""
    aliases: dict[int, list[str]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(weight), []).append(name)
    found: list[Layer] = []
    for place, module in model.named_modules():
        own = {
            key: tuple(dict.fromkeys((f"{place}.{key}" if place else key, *aliases[id(weight)])))  # its own name first
            for key, weight in module.named_parameters(recurse=False)
        }
        if isinstance(module, Stored):
            own |= {key: (f"{place}.{key}",) for key in module.shapes()}
        if _linear(module):  # whose weight may be held in some other way, and be no parameter
            found.append(Linear(module, place, {"weight": (f"{place}.weight",)} | own))
        elif own:
            found.append(_layer(module, place, own))
    return found


def probe_rows(model: PreTrainedModel) -> Tensor:
    """Return two rows of tokens that show what a model does."""
    tokens = torch.arange(2 * PROBED, device=model.device)
    return (tokens % model.get_input_embeddings().num_embeddings).view(2, -1)


@torch.no_grad()
def find_rows(model: PreTrainedModel, layers: Sequence[Layer]) -> None:
    """Find out of which layers the inputs are those of one row after another, by what two rows become in either order.

    Not so are inputs that are laid out by experts, by positions or in an order of their own: whose they are cannot be told.
    Nor are those that come with others than tensors, such as the cache of all rows.
    """
    rows = probe_rows(model)
    splits = dict.fromkeys(layers, True)
    seen: list[dict[Layer, Tensor]] = []

    def note(layer: Layer, module: nn.Module, given: tuple[Any, ...], more: dict[str, Any]) -> None:
        inputs = next((each for each in [*given, *more.values()] if isinstance(each, Tensor)), None)
        if inputs is not None:
            seen[-1][layer] = inputs.detach().float()

    def check(layer: Layer, module: nn.Module, given: tuple[Any, ...], more: dict[str, Any], made: Any) -> None:
        splits[layer] &= layer.splits(given, more, made)

    with ExitStack() as stack:
        for layer in layers:
            before, behind = layer.module.register_forward_pre_hook, layer.module.register_forward_hook
            stack.callback(before(partial(note, layer), with_kwargs=True).remove)
            stack.callback(behind(partial(check, layer), with_kwargs=True).remove)
        for tokens in (rows, rows.flip(0)):
            seen.append({})
            model(tokens, use_cache=False)
        one, other = seen
        for layer in layers:
            layer.in_rows = splits[layer] and _swapped(one.get(layer), other.get(layer), layer.shared)
        seen.append({})
        with suppress(Exception):  # as `uses_of` does
            model(rows, use_cache=True)
    for layer in layers:
        layer.together = layer.in_rows and splits[layer]


def _swapped(one: Tensor | None, other: Tensor | None, shared: bool) -> bool:
    """Whether the second has the rows of the first in the other order; or, where that may be, one row for all."""
    if one is None or other is None or one.shape != other.shape:
        return False
    if shared and len(one) == 1:
        return torch.equal(one, other)
    if one.numel() % 2:
        return False
    bound = 1e-2 * float(one.abs().max())
    return torch.allclose(one.reshape(2, -1).flip(0), other.reshape(2, -1), atol=bound)


@torch.no_grad()
def _linear(module: nn.Module) -> bool:
    """Whether a module multiplies with its weight and does no more: of one that only looks like it, by trying."""
    sizes = hasattr(module, "in_features") and hasattr(module, "out_features")
    if not (isinstance(module, nn.Linear | Conv1D) or (sizes and not list(module.children()))):
        return False
    weight = dict(module.named_parameters(recurse=False)).get("weight")
    if type(module) in (nn.Linear, Conv1D) or weight is None or not weight.is_floating_point() or weight.dim() != 2:
        return True  # of one whose weight is held in some other way, the class says what it computes
    x, probe = (torch.linspace(-2, 3, each.numel(), device=weight.device, dtype=weight.dtype).sin().view(each.shape)
                for each in (weight[:2], weight))  # fmt: skip
    bias = {"bias": torch.ones_like(module.bias)} if isinstance(getattr(module, "bias", None), Tensor) else {}
    try:
        found = functional_call(module, {"weight": probe, **bias}, (x,))
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):  # it takes something else
        return False
    wanted = linear(x, probe, bias.get("bias"))
    bound = (1e-5 if weight.dtype == torch.float32 else 2e-2) * float(wanted.abs().max())
    return isinstance(found, Tensor) and found.shape == wanted.shape and torch.allclose(found, wanted, atol=bound)


@torch.no_grad()
def _layer(module: nn.Module, place: str, names: Mapping[str, Names]) -> Layer:
    """Find out what a module does with its weights, by trying."""
    try:
        if isinstance(module, nn.Embedding) and (empty := _without_rows(module)) is not None:
            return Lookup(module, place, names, empty)
        if names.keys() <= {"weight", "bias"} and (plain := _without_weight(module)) is not None:
            return Norm(module, place, names, plain)
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):  # it takes something else
        pass
    return Layer(module, place, names)


def _without_rows(module: nn.Embedding) -> nn.Module | None:
    """Return a module that does with the rows it is given what this one does with its own; None where it does more."""
    empty = copy.deepcopy(module, {id(module.weight): nn.Parameter(module.weight[:0], requires_grad=False)})
    empty.padding_idx = None  # whose row is one as any other, and may be beyond those it is given
    ids = torch.arange(min(5, module.num_embeddings), device=module.weight.device).flip(0)
    found = functional_call(empty, {"weight": module.weight[ids]}, (torch.arange(len(ids), device=ids.device),))
    return empty if torch.equal(module(ids), found) else None


def _without_weight(module: nn.Module) -> nn.Module | None:
    """Return a module that computes what the weight is multiplied with; None where it is nothing of the kind."""
    weight = module.get_parameter("weight")
    if weight.dim() != 1 or not weight.is_floating_point():
        return None
    x = torch.linspace(-2, 3, 3 * len(weight), device=weight.device, dtype=weight.dtype).view(3, -1).sin()
    zeros = {key: torch.zeros_like(each) for key, each in module.named_parameters(recurse=False)}

    def told(weight: Tensor, bias: float = 0.0) -> Tensor:
        return functional_call(
            module, zeros | {"weight": weight} | ({"bias": zeros["bias"] + bias} if bias else {}), (x,)
        )

    nothing, once = told(torch.zeros_like(weight)), told(torch.ones_like(weight))
    slope, probe = once - nothing, torch.linspace(-1, 2, len(weight), device=weight.device, dtype=weight.dtype)
    bound = 2e-2 if weight.dtype != torch.float32 else 1e-5
    if not torch.allclose(told(probe), nothing + slope * probe, atol=bound):
        return None
    if "bias" in zeros and not torch.allclose(told(probe, 0.5), told(probe) + 0.5, atol=bound):
        return None
    at = next(
        (value for value, found in ((1.0, once), (0.0, nothing)) if torch.allclose(found, slope, atol=bound)), None
    )
    if at is None:
        return None
    plain = copy.deepcopy(module)
    for key, each in plain.named_parameters(recurse=False):
        each.fill_(at if key == "weight" else 0.0)
    return plain

"""What decoder layers are given when a model runs, and which of them are alike: one piece of compiled code serves those."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gym_torch.batch import Piece
from gym_torch.compiled.layer_description import described
from gym_torch.memory.gradient_checkpointing import recomputable
from gym_torch.model.hidden_states import hidden_states
from gym_torch.packing import Layout
from gym_torch.rounding import rounding
from gym_torch.segment_spans import Spans

#: Tokens and segments of two rows. Sizes that differ between them vary; equal ones of the first row are one size, so they are
#: sizes that nothing in a model has.
ROWS = ((1021, 23), (577, 19))
SHORT = ((127, 11), (61, 5))  #: the same, where only what layers are given is asked for
Forward = Callable[..., Any]  #: of a layer, given what that is
Size = int | str  #: of a dimension: always the same, or a name for one that varies


@dataclass
class Alike:
    """Layers that compute the same with other weights, and what the first of them was given in a row."""

    layers: list[nn.Module]
    given: tuple[tuple[Any, ...], dict[str, Any]]  #: of tensors without a graph
    learns: set[str]  #: paths of the tensors that a gradient goes back to, in one of the layers
    sizes: dict[str, list[Size]]  #: by path, of the tensors


Met = Callable[..., list[Alike]]  #: finds out what layers are given, in rows such as `ROWS`


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what is in tuples, lists and dictionaries, each with its path."""
    if type(value) in (tuple, list):
        for number, item in enumerate(value):
            yield from leaves(item, f"{path}/{number}")
    elif type(value) is dict:
        for name, item in value.items():
            yield from leaves(item, f"{path}/{name}")
    else:
        yield path, value


def rebuilt(value: Any, tensors: Mapping[str, Tensor], path: str = "") -> Any:
    """Return the same with other tensors at some paths."""
    if type(value) in (tuple, list):
        return type(value)(rebuilt(item, tensors, f"{path}/{number}") for number, item in enumerate(value))
    if type(value) is dict:
        return {name: rebuilt(item, tensors, f"{path}/{name}") for name, item in value.items()}
    if path not in tensors:
        return value
    if type(value) is not Spans:
        return tensors[path]
    spans = copy(value)
    spans.table = tensors[path]
    return spans


def tensor_of(leaf: Any) -> Any:
    """Return the tensor that stands for a leaf in compiled code; what is no tensor as it is."""
    return leaf.table if type(leaf) is Spans else leaf


def calls(
    model: PreTrainedModel, layout: Layout, precision: str, rows: tuple[tuple[int, int], ...] = ROWS
) -> list[Alike]:
    """Return the layers of a model in training, those that are alike together, and what they are given.

    Virtual tokens may pass through the layers before a row does: the last call of a layer in a pass counts.
    """
    found: dict[str, Alike] = {}
    total, met = Counter[nn.Module](), Counter[nn.Module]()
    others: dict[nn.Module, dict[str, list[int]]] = {}  # shapes in the second row

    def look(layer: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        total[layer] += 1
        others[layer] = {path: list(tensor.shape) for path, tensor in _tensors(inputs, options).items()}

    def meet(layer: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        met[layer] += 1
        if met[layer] < total[layer]:
            return
        tensors = _tensors(inputs, options)
        bare = {path: tensor.detach() for path, tensor in tensors.items()}
        key = json.dumps([described(layer), sorted(bare)])
        if key not in found:
            sizes = {path: _sizes(list(tensor.shape), others[layer][path]) for path, tensor in bare.items()}
            found[key] = Alike([], rebuilt((inputs, options), bare), set(), sizes)
        found[key].layers.append(layer)
        found[key].learns.update(path for path in bare if tensors[path].requires_grad)

    for hook, row in zip((look, meet), reversed(rows), strict=True):
        handles = [layer.register_forward_pre_hook(hook, with_kwargs=True) for layer in recomputable(model)]
        try:
            _run(model, layout, precision, *row)
        finally:
            for handle in handles:
                handle.remove()
    return list(found.values())


def _tensors(inputs: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Tensor]:
    """Return the tensors in what a layer is given, by path."""
    found = {path: tensor_of(leaf) for path, leaf in leaves((inputs, options))}
    return {path: leaf for path, leaf in found.items() if isinstance(leaf, Tensor)}


def gradients(forward: Forward, layer: nn.Module, alike: Alike, precision: str) -> list[Tensor]:
    """Return what a layer makes of the row, and the gradients of half its square, and leave none in the layer.

    Nothing is returned where the forward pass makes nothing of it.
    """
    tensors = dict(leaves(alike.given))
    entering = {path: tensor_of(tensors[path]).clone().requires_grad_() for path in sorted(alike.learns)}
    inputs, options = rebuilt(alike.given, entering)
    device = next(iter(layer.parameters())).device
    with rounding(device, precision):
        made = forward(*inputs, **options)
    if made is None:
        return []
    out: Tensor = made[0] if isinstance(made, tuple) else made
    wanted = [*entering.values(), *(weight for weight in layer.parameters() if weight.requires_grad)]
    return [out.detach(), *torch.autograd.grad(out, wanted, out.detach(), materialize_grads=True)] if wanted else [out]


def _sizes(first: list[int], second: list[int]) -> list[Size]:
    return [size if size == other else f"n{size}" for size, other in zip(first, second, strict=True)]


def _run(model: PreTrainedModel, layout: Layout, precision: str, tokens: int, segments: int) -> None:
    """Run a model on a row as it runs in training, up to its head."""
    row = np.arange(tokens, dtype=np.int32) % model.config.get_text_config().vocab_size
    pieces = [Piece("trial", part, np.ones(len(part), dtype=np.bool_)) for part in np.array_split(row, segments)]
    with torch.random.fork_rng(), rounding(model.device, precision):
        hidden_states(model, layout.lay_out(pieces, ()).to(model.device))

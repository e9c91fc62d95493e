"""Layers of a model that repeat others: a plan computes a few of each kind, and multiplies.

Where a block of layers repeats, all but a few of its repetitions are left out; what they add is added per block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from gym_torch.model.decoder_layers import layers_of
from gym_torch.model.parameter_groups import groups_of
from gym_torch.quantization.weights import stored_modules

_SCALARS = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Repeat:
    """A block of layers that a model has four times in a row or more."""

    start: int = 0  #: number of its first layer
    period: int = 0  #: layers of a block
    times: int = 0  #: blocks that can be left out, so that two stay; 0 where nothing repeats

    def numbers(self, times: int) -> range:
        """Return the numbers of the layers of the first `times` blocks."""
        return range(self.start, self.start + times * self.period)


def repeat_of(layers: nn.ModuleList, every: int = 1) -> Repeat:
    """Return the repetition that lets the most layers be left out; each `every`-th layer is of another kind than the rest."""
    own = [id(tensor) for layer in layers for tensor in _tensors(layer)]
    if len(set(own)) < len(own):  # layers that share weights are not as many as they seem
        return Repeat()
    signs = [(number % max(1, every), _signature(layer)) for number, layer in enumerate(layers)]
    kinds = [signs.index(sign) for sign in signs]
    found = [Repeat()]
    for period in range(1, len(kinds) // 3 + 1):
        start = 0
        for alike, run in groupby(here == there for here, there in zip(kinds, kinds[period:], strict=False)):
            length = len(list(run))
            if alike and length // period > 2:
                found.append(Repeat(start, period, length // period - 1))
            start += length
    return max(found, key=lambda repeat: repeat.period * repeat.times)


def leave_out(model: PreTrainedModel, numbers: range) -> None:
    """Take these layers out of a model, and out of the lists of its configuration that have an entry for each."""
    parent, name, layers = layers_of(model)
    options = model.config.get_text_config()
    setattr(parent, name, nn.ModuleList(_without(layers, numbers)))
    for key, value in _by_layer(options, len(layers)).items():
        setattr(options, key, _without(value, numbers))
    options.num_hidden_layers = len(layers) - len(numbers)


@contextmanager
def left_out(model: PreTrainedModel, numbers: range) -> Iterator[None]:
    """Leave layers out for a while."""
    parent, name, layers = layers_of(model)
    options = model.config.get_text_config()
    before = _by_layer(options, len(layers)) | {"num_hidden_layers": len(layers)}
    leave_out(model, numbers)
    try:
        yield
    finally:
        setattr(parent, name, layers)
        for key, value in before.items():
            setattr(options, key, value)


def tensors_of(model: PreTrainedModel, repeat: Repeat) -> list[Tensor]:
    """Return the weights and buffers of a model that has three of the repeated blocks, as many as the whole model has."""
    layers = layers_of(model)[2]
    block = [tensor for number in repeat.numbers(1) for tensor in _tensors(layers[number])]
    return _tensors(model) + max(0, repeat.times - 1) * block


def numbers_of(model: PreTrainedModel, repeat: Repeat) -> int:
    """Return how many weights the whole model has, those that are held in a few bits included."""
    layers = layers_of(model)[2]
    block = sum(_numbers(layers[number]) for number in repeat.numbers(1))
    return _numbers(model) + max(0, repeat.times - 1) * block


def groups_with(model: PreTrainedModel, repeat: Repeat) -> list[dict[str, Any]]:
    """Return the groups of parameters of the whole model, with a shape in place of each; layers that are not there count on."""
    layers, numbers = layers_of(model)[2], repeat.numbers(1)
    number_of = {weight: number for number in numbers for weight in layers[number].parameters()}
    groups = groups_of(model)
    for group in groups:
        there = group["params"]
        group["params"] = [(name, tuple(weight.shape)) for name, weight in there]
        for round in range(max(0, repeat.times - 1)):
            more = len(layers) + round * repeat.period - repeat.start
            group["params"] += [
                (name.replace(f".{number_of[weight]}.", f".{number_of[weight] + more}.", 1), tuple(weight.shape))
                for name, weight in there
                if weight in number_of
            ]
    return groups


def _numbers(module: nn.Module) -> int:
    stored = sum(each.numbers for each in stored_modules(module).values())
    return stored + sum(weight.numel() for weight in module.parameters())


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _without(values: Any, numbers: range) -> list[Any]:
    return [value for number, value in enumerate(values) if number not in numbers]


def _by_layer(options: Any, count: int) -> dict[str, list[Any]]:
    return {key: value for key, value in vars(options).items() if isinstance(value, list) and len(value) == count}


def _signature(layer: nn.Module) -> list[Any]:
    """Return what decides how a layer computes, its number excepted."""
    return [
        (
            name,
            type(module),
            {key: value for key, value in vars(module).items() if isinstance(value, _SCALARS) and key != "layer_idx"},
            [(key, tuple(p.shape), p.dtype, p.requires_grad) for key, p in module.named_parameters(recurse=False)],
        )
        for name, module in layer.named_modules()
    ]

"""Layers on an accelerator: `torch.compile` traces them where they are first used, and finds code of before on the disk."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import nn

from gym_torch.compiled.layer_calls import Alike, Forward, Met, gradients
from gym_torch.patched_forward import restore


def make(groups: list[Alike], precision: str, _folder: Path) -> list[Forward]:
    """Compile a copy of the first layer of each group, and return those. Raises what the compiler raises."""
    copies = [copy.deepcopy(alike.layers[0]) for alike in groups]
    _compile(copies)
    _meet(copies, groups, precision)
    return list(copies)


def install(layers: list[nn.Module], precision: str, _codes: list[int], _folder: Path, met: Met, *_: object) -> None:
    """Compile layers in place, with code for all that they meet in training."""
    groups = met()
    _compile(layers)
    _meet([alike.layers[0] for alike in groups], groups, precision)


def _compile(layers: list[nn.Module]) -> None:
    """Compile layers in place, for rows of any length, by what their classes say: a kernel would be code of its own."""
    for layer in layers:
        for module in layer.modules():
            restore(module)
        layer.compile(dynamic=True)


def _meet(layers: list[nn.Module], groups: list[Alike], precision: str) -> None:
    with torch.random.fork_rng():
        for layer, alike in zip(layers, groups, strict=True):
            gradients(layer, layer, alike, precision)

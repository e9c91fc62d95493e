"""Layers on a CPU: their code is made before it is used, often in another process, and a run that uses it traces nothing."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import nn

from gym_torch.model.layer_calls import Alike, Forward, Met, gradients
from gym_torch.model.layer_code import CompiledForward, LayerCode, UnfitError
from gym_torch.model.patched_forward import surround

CLOSE = {
    False: 1e-4,
    True: 0.05,
}  #: relative error of what a compiled layer computes to what it computes as it is; by bf16


def make(groups: list[Alike], bf16: bool, folder: Path) -> list[Forward]:
    """Write the code of each group into a folder, and return the forward pass by it of the first layer of each.

    Each layer is compared with itself. Raises UnfitError where no code can be made for one, and whatever a compiler may raise.
    """
    from gym_torch.model.layer_export import export  # which imports the compiler

    forwards: list[Forward] = []
    for number, alike in enumerate(groups):
        where = folder / str(number)
        where.mkdir()
        export(alike, bf16, where)
        code = LayerCode(where)
        for layer in alike.layers:
            compare(layer, alike, bf16, CompiledForward(code, layer))
        forwards.append(partial(CompiledForward(code, alike.layers[0]).computed, alike.layers[0]))
    return forwards


def install(layers: list[nn.Module], _bf16: bool, codes: list[int], folder: Path, _met: Met) -> None:
    """Have each layer compute by its code, in place."""
    loaded = {number: LayerCode(folder / str(number)) for number in set(codes)}
    for layer, number in zip(layers, codes, strict=True):
        surround(layer, CompiledForward(loaded[number], layer))


def compare(layer: nn.Module, alike: Alike, bf16: bool, compiled: CompiledForward) -> None:
    """Raise UnfitError where a layer draws random numbers, or its code computes something else than it does."""
    name, before = type(layer).__name__, torch.get_rng_state()
    with torch.random.fork_rng():
        wanted = gradients(layer, layer, alike, bf16)
        if not torch.equal(before, torch.get_rng_state()):
            raise UnfitError(f"{name} draws random numbers")
    found = gradients(partial(compiled.computed, layer), layer, alike, bf16)
    for one, right in zip(found, wanted, strict=True):
        off = float((one.double() - right.double()).norm())
        if not off <= CLOSE[bf16] * float(right.double().norm()):
            raise UnfitError(f"compiled, {name} computes something else, by {off:.2g}")

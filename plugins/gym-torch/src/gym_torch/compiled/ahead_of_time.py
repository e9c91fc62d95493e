"""Layers on a CPU: their code is made before it is used, often in another process, and a run that uses it traces nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from gym_torch.compiled.layer_calls import SHORT, Alike, Forward, Met, gradients
from gym_torch.compiled.layer_code import CompiledForward, Everywhere, LayerCode, UnfitError
from gym_torch.patched_forward import surround

#: Relative error of what a compiled layer computes to what it computes as it is.
CLOSE = {"fp32": 1e-4, "bf16": 0.05, "fp16": 0.01}


def make(groups: list[Alike], precision: str, folder: Path) -> list[Forward]:
    """Write the code of each group into a folder, and return the forward pass by it of the first layer of each.

    Each layer is compared with itself. Raises UnfitError where no code can be made for one, and whatever a compiler may raise.
    """
    from gym_torch.compiled.layer_export import export  # which imports the compiler

    forwards: list[Forward] = []
    for number, alike in enumerate(groups):
        where = folder / str(number)
        where.mkdir()
        export(alike, precision, where)
        code = LayerCode(where)
        for layer in alike.layers:
            if not compare(layer, alike, precision, CompiledForward(code, layer)):
                raise UnfitError(f"compiled code takes other weights or inputs than {type(layer).__name__} has")
        forwards.append(partial(CompiledForward(code, alike.layers[0]).computed, alike.layers[0]))
    return forwards


def install(
    layers: list[nn.Module], precision: str, codes: list[int], folder: Path, met: Met, everywhere: Everywhere = list
) -> None:
    """Have each layer compute by its code, in place, once one layer of each code is found to compute the same.

    Raises UnfitError where one does not, in any process, before any layer is changed.
    """
    by_layer: dict[nn.Module, CompiledForward] = {}
    unfit = []
    try:
        loaded = {number: LayerCode(folder / str(number)) for number in set(codes)}
        forwards = [CompiledForward(loaded[number], layer) for layer, number in zip(layers, codes, strict=True)]
        by_layer = dict(zip(layers, forwards, strict=True))
        for alike in met(SHORT):
            # Until one is computed by the code.
            any(compare(layer, alike, precision, by_layer[layer]) for layer in alike.layers)
    except UnfitError as error:
        unfit.append(str(error))
    if unfit := everywhere(unfit):
        raise UnfitError(unfit[0])
    for layer, forward in by_layer.items():
        surround(layer, forward)


def compare(layer: nn.Module, alike: Alike, precision: str, compiled: CompiledForward) -> bool:
    """Return whether a layer in training is computed by its code, and note in which modes that computes what the layer does.

    Raises UnfitError where it does not in training, or the layer draws random numbers.
    """
    name, before = type(layer).__name__, torch.get_rng_state()
    with torch.random.fork_rng(), _in_mode(layer, training=True):
        wanted = gradients(layer, layer, alike, precision)
        if not torch.equal(before, torch.get_rng_state()):
            raise UnfitError(f"{name} draws random numbers")
        found = gradients(partial(compiled.computed, layer), layer, alike, precision)
    if not found:
        return False
    if off := _off(found, wanted, precision):
        raise UnfitError(f"compiled, {name} computes something else, by {off:.2g}")
    with torch.random.fork_rng(), _in_mode(layer, training=False):
        evaluated = gradients(layer, layer, alike, precision)
    compiled.code.proven = {True} if _off(found, evaluated, precision) else {True, False}
    return True


def _off(found: list[Tensor], wanted: list[Tensor], precision: str) -> float:
    """Return by how much tensors are off those that are wanted; 0.0 where they are as close as they must be."""
    for one, right in zip(found, wanted, strict=True):
        off = float((one.double() - right.double()).norm())
        if not off <= CLOSE[precision] * float(right.double().norm()):
            return off
    return 0.0


@contextmanager
def _in_mode(layer: nn.Module, training: bool) -> Iterator[None]:
    """Have a layer be in training or not; each of its modules is afterwards as it was."""
    before = [(part, part.training) for part in layer.modules()]
    layer.train(training)
    try:
        yield
    finally:
        for part, mode in before:
            part.training = mode

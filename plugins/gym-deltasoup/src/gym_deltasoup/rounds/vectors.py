"""A change as one vector: the same numbers in the same order for all members of a round."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from gym_core import GymError
from gym_deltasoup.artifact_merge import group_of
from gym_deltasoup.rounds.base import PIECE, Base
from gym_deltasoup.sources.inputs import Input, opened

Layout = Mapping[str, tuple[int, ...]]
"""Names and shapes, in the order of the numbers."""


def layout(base: Base, patterns: Sequence[str], adapter: bool) -> dict[str, tuple[int, ...]]:
    """Return the weights of a base that are added up; for an adapter its layers. Raises GymError where there are none."""
    found: dict[str, tuple[int, ...]] = {}
    for name, each in sorted(base.tensors.items()):
        if not each.dtype.is_floating_point or not any(fnmatchcase(name, pattern) for pattern in patterns):
            continue
        matrix = base.matrix(_layer(name)) if name.endswith(".weight") else None
        if adapter and matrix is None:
            raise GymError(f"{name} is no linear layer, and an adapter is to be made", key="secure_layers")
        found.update({_layer(name): matrix} if adapter and matrix else {name: each.shape})
    if not found:
        raise GymError(f"no weight of the base is called {' or '.join(patterns)}", key="secure_layers")
    return found


def digest(shapes: Layout) -> str:
    """Return the SHA-256 of a layout."""
    return hashlib.sha256(json.dumps([[name, [*shape]] for name, shape in shapes.items()]).encode()).hexdigest()


def numbers(shapes: Layout) -> int:
    """Return how many numbers a vector has."""
    return sum(map(prod, shapes.values()))


def change_of(path: Path, base: Base, shapes: Layout, scratch: Path) -> Tensor:
    """Return what a model, an adapter or a delta changes in the base: fp32 `[numbers]`.

    Raises GymError where it changes a weight that is not in the layout, or one of another shape.
    """
    found = opened([Input(path, "this contribution")], str(base.path))
    scratch.mkdir(parents=True, exist_ok=True)
    group = group_of(found[0].artifact.kind)(found, base.path, scratch)
    own = group.contributions[0]
    held = {_layer(name): name for name in group.shapes}
    wanted = {_layer(name) for name in shapes}
    parts = []
    for name, shape in shapes.items():
        key = held.get(_layer(name))
        if key is not None and group.shapes[key] != shape:
            why = f"{name} has the shape {[*group.shapes[key]]}, not {[*shape]}"
            raise GymError(why, where=str(path), key="secure_layers")
        parts.append(torch.zeros(prod(shape)) if key is None else own.read(key, 0, prod(shape)))
    for layer, name in held.items():
        size = prod(group.shapes[name])
        begins = range(0, size if layer not in wanted else 0, PIECE)
        if any(own.read(name, begin, min(begin + PIECE, size)).any() for begin in begins):
            why = f"it changes {name}, which the members of this community do not add up"
            raise GymError(
                why, where=str(path), key="secure_layers", fix="train the layers that the server names alone"
            )
    return torch.cat(parts)


def _layer(name: str) -> str:
    return name.removesuffix(".weight")

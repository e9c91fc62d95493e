"""Options whose value changes with the layer: one number, numbers along the depth, or either for weights of some names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, TypeAlias, TypeVar

from pydantic import Field

from gym_core import GymError

N = TypeVar("N")
Along: TypeAlias = N | Annotated[tuple[N, ...], Field(min_length=1)]
"""One number, or numbers at equal distances from the first layer to the last, with straight lines between them."""
ByLayer: TypeAlias = Along[N] | Annotated[dict[str, Along[N]], Field(min_length=1)]
"""The same for all weights, or for those whose name has a part: the first part that fits holds, and `*` fits all."""

LAYER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")
#: In names of weights before the first layer; the others come behind the last.
FIRST = re.compile(r"emb(?!ed_out)|wte|wpe")


def values_of(said: ByLayer[float], tensors: Sequence[str], key: str) -> list[float]:
    """Return the value for each of these weights.

    Raises GymError where none is said for one of them, or where numbers along the depth are, and names have no layers.
    """
    lists = said.values() if isinstance(said, Mapping) else [said]
    depths = depths_of(tensors, key) if any(isinstance(each, Sequence) for each in lists) else [0.0] * len(tensors)
    return [_at(_for(said, name, key), depth) for name, depth in zip(tensors, depths, strict=True)]


def depths_of(tensors: Sequence[str], key: str) -> list[float]:
    """Return how deep each weight lies: 0 for the first layer of a stack, and embeddings, to 1 for the last, and the head."""
    places = {name: (name[: found.start()], int(found[1])) for name in tensors if (found := LAYER.search(name))}
    if tensors and not places:
        why = f"it changes along the layers, and names of weights such as {tensors[0]} have no number of one"
        raise GymError(why, key=key, fix="give one number")
    last: dict[str, int] = {}
    for stack, layer in places.values():
        last[stack] = max(layer, last.get(stack, 0))
    depths = {name: layer / last[stack] if last[stack] else 1.0 for name, (stack, layer) in places.items()}
    return [depths.get(name, 0.0 if FIRST.search(name) else 1.0) for name in tensors]


def _for(said: ByLayer[float], name: str, key: str) -> Along[float]:
    if not isinstance(said, Mapping):
        return said
    if (part := next((part for part in said if part == "*" or part in name), None)) is None:
        raise GymError(f"no part of {name} is named, only {', '.join(said)}", key=key, fix='add `"*"` for all others')
    return said[part]


def _at(along: Along[float], depth: float) -> float:
    if not isinstance(along, Sequence):
        return float(along)
    place = depth * (len(along) - 1)
    below = min(int(place), len(along) - 1)
    above = min(below + 1, len(along) - 1)
    return (1 - (place - below)) * along[below] + (place - below) * along[above]

"""What each weight of a model is called in GGUF, and where it lies there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from gym_core import GymError
from gym_export.formats.gguf.architectures import Architecture

_EXPERT = re.compile(r"\.experts\.(\d+)\.")


class Place(NamedTuple):
    """Where a weight lies in a file."""

    tensor: str
    expert: int | None  #: which slice of it, where the experts of a layer lie in one
    shape: tuple[int, ...]  #: of the tensor
    keeps: bool  #: whether it stays in fp32


def places(shapes: Mapping[str, tuple[int, ...]], found: Architecture, layers: int, experts: int) -> dict[str, Place]:
    """Return the place of each weight, by its name in files of transformers. Raises GymError for one that has none."""
    import gguf

    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == found.name)
    names = gguf.get_tensor_name_map(number, layers)
    made: dict[str, Place] = {}
    for name, shape in shapes.items():
        expert = _EXPERT.search(name)
        joined = _EXPERT.sub(".experts.", name)
        tensor = names.get_name(joined, try_suffixes=(".weight", ".bias"))
        if tensor is None:
            raise GymError(
                f"{name} has no place in a GGUF file of `{found.name}`", key="export", fix="export with `safetensors`"
            )
        whole = (experts, *shape) if expert else shape
        router = tensor.endswith("ffn_gate_inp.weight")
        made[name] = Place(tensor, int(expert.group(1)) if expert else None, whole, router)
    return made

"""The model that everybody trains from: what its weights are called, and of what shapes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import torch

from gym_data.location import lasting, locate
from gym_deltasoup.sources.model_tensors import tensors_of_model
from gym_deltasoup.sources.tensor_slices import Stored
from gym_torch.checkpoints.base_fingerprint import base_fingerprint

CONV1D_MODELS = ("gpt2", "openai-gpt")  #: of transformers, with layers that keep their matrix as `[in, out]`
CONV1D = ("c_attn", "c_proj", "c_fc", "q_attn")
PIECE = 1 << 22  #: numbers that are read at a time


class Base:
    """A model on this machine."""

    def __init__(self, name: str) -> None:
        """Find it. Raises GymError where it is not there."""
        self.name = lasting(name)
        self.path: Path = locate(name, key="base_model")
        self.fingerprint = base_fingerprint(self.path)

    @cached_property
    def tensors(self) -> Mapping[str, Stored]:
        """All weights, by the names that they have in the model, which adapters use."""
        return tensors_of_model(self.path)

    def matrix(self, layer: str) -> tuple[int, int] | None:
        """Return `[out, in]` of a linear layer, as adapters have it; None where there is no layer of this name."""
        stored = self.tensors.get(f"{layer}.weight")
        if stored is None or len(stored.shape) != 2:
            return None
        rows, columns = stored.shape
        turned = self._type in CONV1D_MODELS and layer.rpartition(".")[2] in CONV1D
        return (columns, rows) if turned else (rows, columns)

    @cached_property
    def _type(self) -> str:
        return str(json.loads((self.path / "config.json").read_text(encoding="utf-8")).get("model_type"))

    @cached_property
    def norm(self) -> float:
        """Norm of all weights together."""
        return sum(squared(each) for each in self.tensors.values()) ** 0.5


def squared(stored: Stored, less: Stored | None = None) -> float:
    """Return the sum of the squares of numbers in a file, or of what they differ by from others: NaN where one is none."""
    total = 0.0
    for begin in range(0, stored.numbers, PIECE):
        end = min(begin + PIECE, stored.numbers)
        values = stored.read(begin, end).double()
        if less is not None:
            values = values - less.read(begin, end).double()
        total += float(torch.dot(values, values))
    return total

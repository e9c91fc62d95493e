"""Means of groups: changes as they are, in full numbers, which no member's contribution can be told from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from gym_core import Artifact
from gym_deltasoup.sources.adapters import Adapters
from gym_deltasoup.sources.files import Change
from gym_deltasoup.sources.inputs import Opened
from gym_deltasoup.sources.models import Models, numbers_of
from gym_deltasoup.sources.tensor_slices import tensors_of

KIND, LAYERS = "change", "change of layers"  #: kinds of artifacts that exist while a round is merged alone


def write_change(vector: Tensor, shapes: Mapping[str, tuple[int, ...]], into: Path, kind: str, base: str) -> Artifact:
    """Write a vector as tensors of these shapes, in fp32."""
    into.mkdir(parents=True)
    sizes = [prod(shape) for shape in shapes.values()]
    parts = zip(shapes.items(), vector.float().split(sizes), strict=True)
    save_file({name: part.reshape(shape) for (name, shape), part in parts}, into / "change.safetensors")
    made = Artifact(into, kind, base=base)
    made.record()
    return made


class Changes(Models):
    """Changes of weights of a base. The result is a whole model."""

    def __init__(self, inputs: Sequence[Opened], base: Path | None, scratch: Path) -> None:
        """Look at all."""
        assert base is not None, "changes are made of a base"
        self.first = self.tokenizer = base
        self.base = self.layout = numbers_of(base, str(base), "base")
        changes = [tensors_of(each.artifact.path) for each in inputs]
        self.shapes = {name: each.shape for name, each in sorted(self.layout.items()) if each.dtype.is_floating_point}
        self.contributions = [Change(each) for each in changes]


class LayerChanges(Adapters):
    """Changes of linear layers of a base. The result is an adapter of the rank that is asked for."""

    def __init__(self, inputs: Sequence[Opened], base: Path | None, scratch: Path) -> None:
        """Look at all."""
        changes = [tensors_of(each.artifact.path) for each in inputs]
        self.first = inputs[0].artifact
        self.shapes = {name: each.shape for name, each in sorted(changes[0].items())}
        self.rank = 1
        self.contributions = [Change(each) for each in changes]

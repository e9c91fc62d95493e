"""What is seen of contributions beside each other: norms, cosines, and how often a number was the largest or the smallest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gym_core import Artifact
from gym_deltasoup.artifact_merge import group_of
from gym_deltasoup.merging.sketch import sketches
from gym_deltasoup.merging.sorted_coordinates import sorted_columns
from gym_deltasoup.sources.files import Contribution, Files, Weights
from gym_deltasoup.sources.inputs import Input, opened
from gym_deltasoup.sources.lora import LoraProduct
from gym_deltasoup.sources.model_tensors import tensors_of_model


@dataclass(frozen=True)
class Beside:
    """Contributions beside each other."""

    norms: Tensor  #: [inputs], of changes
    cosines: Tensor  #: [inputs, inputs]; 0 where a change is zero
    sketches: Tensor  #: [inputs, width]


@dataclass(frozen=True)
class BesideResult:
    """Contributions beside what was made of them."""

    distances: Tensor  #: [inputs], to the result
    cosines: Tensor  #: [inputs], to the result
    trimmed: Tensor  #: [inputs], share of the coordinates in which one is among the `hostile` largest or smallest
    sketch: Tensor  #: [1, width], of the result

    def first(self, count: int) -> BesideResult:
        """Return the first so many."""
        return BesideResult(self.distances[:count], self.cosines[:count], self.trimmed[:count], self.sketch)


def beside(inputs: Sequence[Input], base: Path, scratch: Path, seed: int) -> Beside:
    """Measure contributions that belong together; `seed` is that of their sketches. Raises what a merge of them does."""
    updates = _updates(inputs, base, scratch, ())
    distances = updates.distances()[0]
    return Beside(distances.norms, _cosines(distances.products), sketches(updates, seed))


def beside_result(
    inputs: Sequence[Input], base: Path, scratch: Path, result: Artifact, hostile: int, seed: int
) -> BesideResult:
    """Measure contributions that were merged."""
    updates = _updates(inputs, base, scratch, (result,))
    distances = updates.distances()[0]
    count = len(inputs)
    outside = torch.zeros(count, dtype=torch.float64)
    if hostile:
        for chunk in updates.chunks():
            values = chunk.values[:count]
            ordered = sorted_columns(values)
            low, high = ordered[hostile], ordered[count - 1 - hostile]
            outside += ((values < low) | (values > high)).sum(1)
    return BesideResult(
        distances.between[:count, count].sqrt(),
        _cosines(distances.products)[:count, count],
        outside / max(1, updates.size),
        sketches(updates, seed, [count]),
    )


def _updates(inputs: Sequence[Input], base: Path, scratch: Path, results: Sequence[Artifact]) -> Files:
    found = opened(inputs, str(base))
    scratch.mkdir(parents=True, exist_ok=True)
    group = group_of(found[0].artifact.kind)(found, base, scratch)
    contributions: list[Contribution] = [*group.contributions, *(_result(each, base) for each in results)]
    names = [each.name for each in inputs] + [f"result {number}" for number in range(len(results))]
    return Files(contributions, names, group.shapes, has_base=True)


def _result(made: Artifact, base: Path) -> Contribution:
    if made.kind == "adapter":
        return LoraProduct(made.path)
    return Weights(tensors_of_model(made.path), tensors_of_model(base))


def _cosines(products: Tensor) -> Tensor:
    norms = products.diagonal().clamp(min=0).sqrt()
    scale = norms[:, None] * norms[None, :]
    return torch.where(scale > 0, products / scale.clamp(min=1e-300), 0.0)

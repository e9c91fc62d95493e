"""LoRA adapters over one base: what is read of them, and the adapter that is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gym_adapters import LoRA
from gym_adapters.lora_checkpoint import artifact, write_lora
from gym_core import Artifact, GymError
from gym_data.location import lasting
from gym_deltasoup.sources.files import Contribution
from gym_deltasoup.sources.inputs import Opened
from gym_deltasoup.sources.lora import LoraProduct, factored
from gym_deltasoup.sources.models import Part, finite
from gym_torch.checkpoints.pooling_files import copy_pooling
from gym_torch.checkpoints.tokenizer_files import copy_tokenizer


class Adapters:
    """Adapters of the same layers."""

    has_base = True

    def __init__(self, inputs: Sequence[Opened], base: Path | None, scratch: Path) -> None:
        """Look at all. Raises GymError where one is no plain LoRA, or changes other layers than the first."""
        products = [LoraProduct(each.artifact.path, unlike=True) for each in inputs]
        self.first = inputs[0].artifact
        self.shapes: dict[str, tuple[int, ...]] = dict(products[0].shapes)
        for each, product in zip(inputs[1:], products[1:], strict=True):
            differing = sorted(
                name for name in {*self.shapes, *product.shapes} if self.shapes.get(name) != product.shapes.get(name)
            )
            if differing:
                why = f"{each.name} and {inputs[0].name} differ in {differing[0]}: one has no such layer, or another shape"
                raise GymError(
                    why, where=str(each.artifact.path), key="inputs", fix="merge adapters of the same layers"
                )
        self.rank = max(product.rank for product in products)
        self.contributions: list[Contribution] = list(products)

    def store_as(self, dtype: torch.dtype) -> None:
        """Raise GymError: factors of what was merged are kept as they came out."""
        raise GymError("only whole models are written in another number format", key="dtype", fix="leave it out")

    def write(self, merged: Iterator[Part], into: Path, rank: int | None) -> dict[str, Any]:
        """Write an adapter as peft keeps it, of the rank given, or of the largest of the inputs; return what was lost."""
        found = factored(self._whole(merged), rank or self.rank)
        write_lora(into, self.first.base, found.lora)
        copy_tokenizer(self.first.path, into)
        copy_pooling(self.first.path, into)
        layer, error = found.worst
        told = {"rank": found.lora.rank, "truncation_error": found.error}
        return {**told, "largest_truncation_error": {"layer": layer, "error": error}}

    def artifact(self, path: Path, base: str | None, details: Mapping[str, Any]) -> Artifact:
        """Return what was written: Gym's own LoRA opens it."""
        rank = int(details["rank"])
        options = LoRA(rank=rank, alpha=rank, target_modules=tuple(self.shapes))
        made = artifact(options, path, self._base(base))
        kept: dict[str, Any] = {
            key: self.first.details[key] for key in ("revision", "config") if key in self.first.details
        }
        return replace(made, details={**made.details, **kept, **details})

    def _base(self, base: str | None) -> str:
        return lasting(base or self.first.base)

    def _whole(self, merged: Iterator[Part]) -> Iterator[tuple[str, Tensor]]:
        """Put the parts of each layer together: those of one layer come one after another."""
        product: Tensor | None = None
        for part in merged:
            product = torch.empty(self.shapes[part.tensor]) if product is None else product
            values = finite(part.tensor, part.values)
            product.view(-1)[part.begin : part.begin + len(values)] = values
            if part.begin + len(part.values) == product.numel():
                yield part.tensor, product
                product = None

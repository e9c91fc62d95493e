"""LoRA adapters as vectors: of each layer the product `scaling B A`, for a mean of factors is no mean of products."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from gym_adapters.lora_checkpoint import PREFIX, WEIGHTS, LoraFile, read_lora
from gym_core import GymError

EXACT = 1024  #: smaller side of a matrix up to which all of its singular values are computed
POWER = 4  #: rounds in which a random basis is turned toward the largest ones of larger matrices


class LoraProduct:
    """One adapter. Its factors stay in the file; those of one layer are in memory."""

    def __init__(self, path: Path, unlike: bool = False) -> None:
        """Look at the adapter, whose layers may have ranks and scalings of their own where they may be `unlike`.

        Raises GymError where it is no plain LoRA of linear layers.
        """
        lora = read_lora(path, key="inputs", unlike=unlike)
        if not lora.pairs:
            raise GymError("it changes no layer: there are no weights in it", where=str(path), key="inputs")
        odd = next((name for name, halves in lora.pairs.items() if set(halves) != {"lora_A", "lora_B"}), None)
        odd = odd or next(iter(lora.beside), None)
        if odd is not None:
            why = f"{odd} is no linear layer with a pair A, B"
            raise GymError(why, where=str(path), key="inputs", fix="merge it into the model first: gym export")
        self.path, self.rank = path, lora.rank
        self._scalings = {name: lora.scalings.get(name, lora.scaling) for name in lora.pairs}
        self.shapes = {
            name: (halves["lora_B"].shape[0], halves["lora_A"].shape[1]) for name, halves in sorted(lora.pairs.items())
        }
        self._held: tuple[str, Tensor, Tensor] | None = None

    def read(self, tensor: str, begin: int, end: int) -> Tensor:
        """Multiply the rows that these numbers are in."""
        if self._held is None or self._held[0] != tensor:
            with safe_open(self.path / WEIGHTS, "pt") as file:
                halves = [file.get_tensor(f"{PREFIX}{tensor}.lora_{half}.weight").float() for half in "AB"]
            self._held = (tensor, halves[0], self._scalings[tensor] * halves[1])
        _, first, second = self._held
        columns = first.shape[1]
        top, bottom = begin // columns, -(-end // columns)
        return (second[top:bottom] @ first).flatten()[begin - top * columns : end - top * columns]


class Factored(NamedTuple):
    """A merged adapter, and what it lacks."""

    lora: LoraFile
    error: float  #: Frobenius norm of what the rank left out, relative to that of the merged products
    worst: tuple[str, float]  #: the layer where it is largest


def factored(products: Iterator[tuple[str, Tensor]], rank: int) -> Factored:
    """Factor matrices `[out, in]` by their singular values: B `[out, rank]` and A `[rank, in]` each have the roots of them."""
    pairs: dict[str, dict[str, Tensor]] = {}
    lost = whole = 0.0
    worst = ("", 0.0)
    for name, product in products:
        second, first = split(product, rank)
        missed, size = float((product - second @ first).double().norm()), float(product.double().norm())
        lost, whole = lost + missed**2, whole + size**2
        worst = max(worst, (name, missed / size if size else 0.0), key=lambda each: each[1])
        pairs[name] = {"lora_A": first, "lora_B": second}
    return Factored(LoraFile(rank, 1.0, pairs), (lost / whole) ** 0.5 if whole else 0.0, worst)


def split(product: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return `[out, rank]` and `[rank, in]`, the best product of this rank; of large matrices nearly, by a random basis."""
    kept = min(rank, *product.shape)
    if min(product.shape) <= EXACT:
        left, values, right = torch.linalg.svd(product.double(), full_matrices=False)
        left, values, right = left[:, :kept], values[:kept], right[:kept]
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            left, values, transposed = torch.svd_lowrank(product, min(kept + 16, *product.shape), POWER)
        left, values, right = left[:, :kept], values[:kept], transposed.T[:kept]
    roots = values.sqrt()
    second, first = product.new_zeros(product.shape[0], rank), product.new_zeros(rank, product.shape[1])
    second[:, :kept], first[:kept] = left * roots, roots[:, None] * right
    return second, first

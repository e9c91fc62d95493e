"""Safe LoRA (arXiv:2405.16833): what a fine-tune changed in a layer, projected on what alignment changed there.

Layers are taken in the order of how much compliance falls where their change is left out, as measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gym_bitdelta.config.base import DeltaOptions
from gym_bitdelta.delta.header import Dense, Zero
from gym_bitdelta.delta.records import Record, matrices, zero
from gym_bitdelta.encoding import Encoder, Role, roles
from gym_bitdelta.fit.quant_scheme import Coding
from gym_core import GymError
from gym_torch.model import mapped_weights
from gym_torch.model.decoder_layers import layers_of

Records = Mapping[str, Record]


def projected(change: Tensor, alignment: Tensor) -> Tensor:
    """Return `P D` with `P = V V^T / |V|`, |V| the Frobenius norm of V.

    Args:
        change: D, `[..., out, in]`; each matrix of a stack by itself.
        alignment: V, what aligning the base changed, of the same shape. Where it is zero, nothing is projected.

    """
    size = alignment.square().sum((-2, -1), keepdim=True).sqrt()
    found = alignment @ (alignment.mT @ change) / size.where(size > 0, 1)
    return found.where(size > 0, change)


def cosine(first: Tensor, second: Tensor) -> float:
    """Return the cosine of two tensors taken as vectors; 1 where one is zero, for there is nothing to mend."""
    both = float((first * second).sum(dtype=torch.float64))
    sizes = [float(each.square().sum(dtype=torch.float64)) ** 0.5 for each in (first, second)]
    return both / (sizes[0] * sizes[1]) if all(sizes) else 1.0


class Alignment:
    """What aligning a base changed in its weights."""

    def __init__(self, unaligned: Path, base: Path) -> None:
        """Map both models. Raises what loading them raises."""
        self._where = unaligned
        self._before, self._after = (
            mapped_weights.load(path, dtype=torch.float32).state_dict() for path in (unaligned, base)
        )

    def change(self, name: str) -> Tensor:
        """Return V of a weight, in fp32. Raises GymError where the unaligned model has none of that shape."""
        before, after = self._before.get(name), self._after[name]
        if before is None or before.shape != after.shape:
            raise GymError(
                f"{name} is not there, or of another shape, before it was aligned",
                where=str(self._where),
                key="quantization.safety_unaligned",
                fix="name the model that the base was aligned from",
            )
        return after - before


def project(
    options: DeltaOptions, records: Records, encoder: Encoder, alignment: Alignment, rate: Callable[[Records], float]
) -> tuple[Records, list[dict[str, Any]]]:
    """Return the records with the most harmful layers projected, and what was done in each of these.

    `rate` measures how often a delta complies. What is projected is coded again as it was coded before.
    """
    every, found, done = roles(encoder.tuned), dict(records), []
    names = _by_layer(encoder.tuned, [name for name in records if _matrix(every[name], records[name])])
    for layer, sensitivity in by_sensitivity(records, names, rate)[: options.safety_layers]:
        cosines = {}
        for name in names[layer]:
            change, turned = encoder.change(name), every[name].transposed
            own, aligned = (matrices(each, turned)[1] for each in (change, alignment.change(name)))
            safe = projected(own, aligned)
            if (like := cosine(own, safe)) < options.safety_similarity:
                cosines[name] = like
                whole = (safe.mT if turned else safe).reshape(change.shape)
                coding, fixed = _coding(options, records[name], name), options.fixed_bits(name) is not None
                found[name] = encoder.coded(whole, every[name], coding, fixed=fixed)
        done.append({"layer": layer, "sensitivity": sensitivity, "cosines": cosines})
    return found, done


def by_sensitivity(
    records: Records, names: Mapping[str, Sequence[str]], rate: Callable[[Records], float]
) -> list[tuple[str, float]]:
    """Return the layers with how much compliance falls where one changes nothing, those that matter most first."""
    whole, falls = rate(records), {}
    for layer, own in names.items():
        falls[layer] = whole - rate({**records, **{name: zero(records[name].entry.shape) for name in own}})
    return sorted(falls.items(), key=lambda item: -item[1])


def _by_layer(model: PreTrainedModel, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the weights of each decoder layer that has some of them, by its name."""
    inside = layers_of(model)[2]
    prefix = next(name for name, module in model.named_modules() if module is inside)
    layers = (f"{prefix}.{number}" for number in range(len(inside)))
    found = {layer: [name for name in names if name.startswith(f"{layer}.")] for layer in layers}
    return {layer: own for layer, own in found.items() if own}


def _matrix(role: Role, record: Record) -> bool:
    return role.matrix and not isinstance(record.entry, Zero)


def _coding(options: DeltaOptions, record: Record, name: str) -> Coding | None:
    """Return how a weight was coded: where a budget decides, in the bits that it was given."""
    ways = options.choices(name)
    return ways.get(record.entry.bits) if ways and isinstance(record.entry, Dense) else options.coding(name)

"""Compares final weights: whole where both are here, else with what a capsule says of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from gym_drill.weight_outline import LOOKS
from gym_torch.checkpoints.weight_shards import CODES, digest
from gym_torch.model_files import weight_files


class Found(NamedTuple):
    """How two sets of weights differ."""

    difference: str  #: the first tensor that differs, empty where all have the same bits
    largest: float  #: largest absolute difference of two numbers
    relative: float  #: L2 norm of all differences, relative to that of the original numbers
    sampled: bool  #: whether numbers were compared at some places alone


def tensors_of(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in the weights of a folder by name, one at a time."""
    for file in weight_files(folder):
        with safe_open(file, "pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - it is no mapping
                yield name, weights.get_tensor(name)


def outline(tensors: Iterator[tuple[str, Tensor]]) -> dict[str, dict[str, Any]]:
    """Return of each tensor its shape, number format, SHA-256 of its numbers, and `LOOKS` of them, from the first to the last."""
    return {name: _outline(tensor) for name, tensor in sorted(tensors)}


def _outline(tensor: Tensor) -> dict[str, Any]:
    numbers = tensor.flatten()
    places = torch.linspace(0, max(0, len(numbers) - 1), min(LOOKS, len(numbers)), dtype=torch.float64).long()
    seen: list[float] = numbers[places].double().tolist()
    kind = CODES.get(tensor.dtype, str(tensor.dtype))
    return {
        "shape": list(tensor.shape),
        "dtype": kind,
        "sha256": digest(tensor),
        "numbers": [f"{each!r}" for each in seen],
    }


def compared_with(told: Mapping[str, Any], folder: Path) -> Found:
    """Compare the weights in a folder with what a capsule says of the original ones."""
    here = outline(tensors_of(folder))
    first = next((name for name in sorted({*told, *here}) if told.get(name) != here.get(name)), "")
    if odd := _odd(
        {name: _kind(each) for name, each in told.items()}, {name: _kind(each) for name, each in here.items()}
    ):
        return Found(odd, torch.inf, torch.inf, True)
    pairs = ((_numbers(told[name]), _numbers(here[name])) for name in here)
    return Found(first, *_sizes(pairs), True)


def compared(original: Path, folder: Path) -> Found:
    """Compare the weights of two folders, a tensor at a time."""
    with ExitStack() as stack:
        left, right = (_opened(place, stack) for place in (original, folder))
        kinds = [{name: _stored(file.get_slice(name)) for name, file in side.items()} for side in (left, right)]
        if odd := _odd(*kinds):
            return Found(odd, torch.inf, torch.inf, False)
        first: list[str] = []

        def pairs() -> Iterator[tuple[Tensor, Tensor]]:
            for name in sorted(left):
                one, other = left[name].get_tensor(name), right[name].get_tensor(name)
                if not first and not torch.equal(one.view(-1).view(torch.uint8), other.view(-1).view(torch.uint8)):
                    first.append(name)
                yield one.flatten().double(), other.flatten().double()

        sizes = _sizes(pairs())
        return Found("".join(first), *sizes, False)


def _opened(folder: Path, stack: ExitStack) -> dict[str, Any]:
    """Return the open file of each tensor."""
    files = [stack.enter_context(safe_open(path, "pt")) for path in weight_files(folder)]
    return {name: file for file in files for name in file.keys()}  # noqa: SIM118 - it is no mapping


def _sizes(pairs: Iterator[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """Return the largest difference of two numbers, and the norm of all relative to that of the first ones."""
    largest, off, norm = 0.0, 0.0, 0.0
    for one, other in pairs:
        if len(one):
            apart = (one - other).nan_to_num(nan=torch.inf).abs()
            largest = max(largest, float(apart.max()))
            off, norm = off + float(apart.square().sum()), norm + float(one.square().sum())
    return largest, (off / norm) ** 0.5 if norm else off


def _odd(told: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Return which tensor one side lacks, or has in another shape or format."""
    for name in sorted({*told, *here}):
        if told.get(name) != here.get(name):
            return f"{name}: {told.get(name, 'absent')} then, {here.get(name, 'absent')} here"
    return ""


def _kind(told: Mapping[str, Any]) -> str:
    return f"{told['dtype']} {told['shape']}"


def _stored(part: Any) -> str:
    return f"{part.get_dtype()} {part.get_shape()}"


def _numbers(told: Mapping[str, Any]) -> Tensor:
    return torch.tensor([float(each) for each in told["numbers"]], dtype=torch.float64)

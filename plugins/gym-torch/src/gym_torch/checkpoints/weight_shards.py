"""Writes the weights of a model to safetensors shards one by one, without holding all of them in memory.

A file of safetensors begins with a list of what lies where. It follows from names and shapes alone, which a model without
weights has (`gym_torch.model.adapted.skeleton`); so the list comes first, and each weight then goes to its place in whatever
order they come.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from gym_core import GymError
from gym_torch.model.mapped_weights import CHUNK, release
from gym_torch.model_files import INDEX

CODES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
}  # fmt: skip


class Place(NamedTuple):
    """Where a weight lies."""

    file: str
    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype


def write(
    model: PreTrainedModel, weights: Iterable[tuple[str, Tensor]], into: Path, most: int, spare: Collection[str] = ()
) -> dict[str, str]:
    """Write all weights of a model into files of at most `most` bytes; return a hash of each, by its name in the model.

    Args:
        model: names and shapes, and the precision of each: a `skeleton`.
        weights: what its `state_dict` is to hold, by name.
        into: a directory.
        most: bytes; a single weight may be larger.
        spare: names of weights to leave out.

    Raises:
        GymError: a weight is missing, comes twice, has another shape or no place in the model.

    """
    empty = own_weights(model)
    tied = model.state_dict().keys() - empty.keys()
    places = lay_out(dict(on_disk(model, empty.items())), into, most)
    digests: dict[str, str] = {}

    def taken() -> Iterator[tuple[str, Tensor]]:
        for name, weight in weights:
            if name in empty:
                held = weight.detach().to(empty[name].dtype)
                digests[name] = digest(held)
                yield name, held
            elif name not in tied and name not in spare:
                raise GymError(f"{type(model).__name__} has no {name}", where=str(into))

    left = dict(places)
    for name, weight in on_disk(model, taken()):
        put(name, weight, left, into)
    if left or digests.keys() != empty.keys():
        lost = sorted(left or empty.keys() - digests.keys())
        raise GymError(f"{len(lost)} weights are missing: {lost[0]}", where=str(into))
    return digests


def own_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return what the `state_dict` of a model holds but for names that are tied to others."""
    tied = model.get_expanded_tied_weights_keys(all_submodels=True)
    return {name: weight for name, weight in model.state_dict().items() if name not in tied}


def on_disk(model: PreTrainedModel, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield weights as they are kept in files, where some families cut them up, join them or call them otherwise."""
    empty = own_weights(model)
    apart = {part for item in empty.items() for part in revert_weight_conversion(model, dict([item]))}
    if apart == revert_weight_conversion(model, dict(empty)).keys():
        for item in weights:
            yield from revert_weight_conversion(model, dict([item])).items()
    else:  # several weights of the model lie in one of a file
        yield from revert_weight_conversion(model, dict(weights)).items()


def digest(weight: Tensor) -> str:
    """Return the SHA-256 of the numbers of a weight, as they are stored."""
    found = hashlib.sha256()
    for piece in pieces(weight):
        found.update(piece)
    return found.hexdigest()


def pieces(weight: Tensor) -> Iterator[memoryview]:
    """Yield the bytes of a weight, a few megabytes at a time, and let go of them where they are mapped."""
    for part in weight.detach().contiguous().view(-1).split(CHUNK):
        yield memoryview(part.cpu().view(torch.uint8).numpy())
        release(part)


def put(name: str, weight: Tensor, left: dict[str, Place], into: Path) -> None:
    """Write a weight to its place, which is then no longer `left`. Raises GymError where it has none, or another shape."""
    place = left.pop(name, None)
    if place is None or place.shape != tuple(weight.shape):
        raise GymError(f"{name} comes twice, or has the shape {list(weight.shape)}", where=str(into))
    with (into / place.file).open("r+b") as file:
        file.seek(place.offset)
        for piece in pieces(weight):
            file.write(piece)


def lay_out(empty: Mapping[str, Tensor], into: Path, most: int) -> dict[str, Place]:
    """Write the beginning of each file, and the index where there are several; return where each weight belongs.

    `empty` are weights without data, by their names on the disk, on the `meta` device; a file has at most `most` bytes.
    """
    split = split_torch_state_dict_into_shards(
        dict(empty), max_shard_size=most, filename_pattern="model{suffix}.safetensors"
    )
    places: dict[str, Place] = {}
    for file, names in split.filename_to_tensors.items():
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name in sorted(names, key=lambda name: (-empty[name].element_size(), name)):
            # each at a multiple of its size
            shape, dtype = tuple(empty[name].shape), empty[name].dtype
            begin, end = end, end + prod(shape) * empty[name].element_size()
            header[name] = {"dtype": CODES[dtype], "shape": shape, "data_offsets": [begin, end]}
            places[name] = Place(file, begin, shape, dtype)
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with (into / file).open("wb") as made:
            made.write(len(text).to_bytes(8, "little") + text)
            made.truncate(made.tell() + end)
        places |= {name: places[name]._replace(offset=places[name].offset + 8 + len(text)) for name in names}
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (into / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return places

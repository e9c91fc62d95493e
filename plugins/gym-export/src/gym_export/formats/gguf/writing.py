"""Writes a GGUF file, one weight after another: each goes to its place, and none is held."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gym_core import GymError
from gym_export.formats.gguf import architectures, vocabulary
from gym_export.formats.gguf.architectures import Architecture
from gym_export.formats.gguf.names import Place
from gym_export.formats.gguf.numbers import encoded, type_for
from gym_export.formats.gguf.vocabulary import Vocabulary

FACTORS = "rope_freqs.weight"


class Tensors(NamedTuple):
    """What lies where in a file."""

    offsets: dict[str, int]
    types: dict[str, Any]


def bytes_of(shape: tuple[int, ...], kind: Any) -> int:
    """Return the bytes of a tensor."""
    import gguf

    block, size = gguf.GGML_QUANT_SIZES[kind]
    return int(np.prod(shape)) // block * size


def lay_out(
    file: Path,
    config: Any,
    name: str,
    found: Architecture,
    words: Vocabulary | None,
    places: Iterable[Place],
    wanted: str,
    pooling: str | None = None,
) -> Tensors:
    """Write what a file says of the model and its tokenizer, and make room for its weights; return where each belongs.

    `pooling` is that of an embedding model, as `pooling_of` has it.
    """
    import gguf

    writer = gguf.GGUFWriter(file, found.name)
    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType["ALL_F32" if wanted == "f32" else f"MOSTLY_{wanted.upper()}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    architectures.describe(writer, config, found)
    if pooling is not None:  # by default llama.cpp embeds each token
        writer.add_pooling_type(gguf.PoolingType.MEAN if pooling == "mean" else gguf.PoolingType.LAST)
    writer.add_vocab_size(config.vocab_size)
    vocabulary.describe(writer, words)
    types: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    tensors = {place.tensor: place for place in places}
    for tensor, place in tensors.items():
        types[tensor] = type_for(place.shape, wanted, place.keeps)
        sizes[tensor] = bytes_of(place.shape, types[tensor])
        writer.add_tensor_info(tensor, place.shape, np.dtype(np.float32), sizes[tensor], types[tensor])
    factors = architectures.rope_factors(config)
    if factors is not None:
        types[FACTORS], sizes[FACTORS] = gguf.GGMLQuantizationType.F32, factors.nbytes
        writer.add_tensor_info(FACTORS, factors.shape, factors.dtype, factors.nbytes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    begin = writer.ggml_pad(writer.fout[0].tell(), writer.data_alignment)
    offsets = {}
    for tensor, size in sizes.items():
        offsets[tensor] = begin
        begin += writer.ggml_pad(size, writer.data_alignment)
    writer.close()
    with file.open("r+b") as made:
        made.truncate(begin)
        if factors is not None:
            made.seek(offsets[FACTORS])
            made.write(factors.tobytes())
    return Tensors(offsets, types)


def put(
    file: Path, weights: Iterable[tuple[str, Tensor]], places: Mapping[str, Place], tensors: Tensors, config: Any,
    found: Architecture, where: str,
) -> None:  # fmt: skip
    """Write each weight to its place. Raises GymError where one is missing, comes twice or does not fit into its type."""
    left = dict(places)
    with file.open("r+b") as made, torch.no_grad():
        for name, weight in weights:
            place = left.pop(name, None)
            shape = None if place is None else place.shape[1:] if place.expert is not None else place.shape
            if place is None or shape != tuple(weight.shape):
                raise GymError(f"{name} comes twice, or has the shape {list(weight.shape)}", where=where)
            rows = architectures.permutation(found, name, config)(weight.detach().float().cpu().numpy())
            kind = tensors.types[place.tensor]
            size = bytes_of(tuple(weight.shape), kind)
            made.seek(tensors.offsets[place.tensor] + (place.expert or 0) * size)
            made.write(encoded(name, rows, kind, where).tobytes())
    if left:
        raise GymError(f"{len(left)} weights are missing: {min(left)}", where=where)

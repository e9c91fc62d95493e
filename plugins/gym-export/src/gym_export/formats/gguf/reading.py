"""Reads a GGUF file back with `gguf`, and compares it with what it was made from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gym_core import GymError
from gym_export.formats.gguf import architectures
from gym_export.formats.gguf.architectures import Architecture
from gym_export.formats.gguf.importance import Importances
from gym_export.formats.gguf.names import Place
from gym_export.formats.gguf.numbers import Array, decoded, farthest, relative
from gym_export.formats.gguf.vocabulary import NO_MERGES, NO_VOCABULARY, Vocabulary, template_key
from gym_export.formats.gguf.writing import FACTORS
from gym_torch.model.adapted import Plain


def opened(file: Path) -> Any:
    """Open a file. Raises GymError where it is damaged."""
    import gguf

    try:
        return gguf.GGUFReader(file)
    except (ValueError, IndexError, OSError, OverflowError, MemoryError) as error:
        raise GymError(f"it is no whole GGUF file: {error}", where=str(file), fix="export again") from error


def said(reader: Any, key: str) -> Any:
    """Return what a file says under a key; None where it says nothing."""
    field = reader.get_field(key)
    return None if field is None else field.contents()


def compare_vocabulary(reader: Any, words: Vocabulary | None, where: str) -> dict[str, Any]:
    """Return figures. Raises GymError where the tokenizer or the chat template is not that of the source."""
    if words is None:
        if said(reader, "tokenizer.ggml.model") != NO_VOCABULARY:
            raise GymError("it names a tokenizer, and the model has none", where=where, fix="report it")
        return {}
    wanted = {
        "tokens": words.tokens,
        "token_type": words.types,
        "merges": words.merges or NO_MERGES,
        "pre": words.pre,
        "add_bos_token": words.begins,
        "add_eos_token": words.ends,
        **{f"{'padding' if role == 'pad' else role}_token_id": number for role, number in words.ids.items()},
    }
    for name, value in wanted.items():
        if said(reader, f"tokenizer.ggml.{name}") != value:
            raise GymError(f"its tokenizer is not that of the model: {name} differs", where=where, fix="report it")
    for name in {"default", *words.templates}:
        if (said(reader, template_key(name)) or "") != words.templates.get(name, ""):
            raise GymError(f"its chat template `{name}` is not that of the model", where=where, fix="report it")
    return {
        "vocabulary": len(words.tokens),
        "pre_tokenizer": words.pre,
        "chat_template": bool(words.templates.get("default")),
    }


def compare_weights(
    reader: Any,
    plain: Plain,
    places: Mapping[str, Place],
    config: Any,
    found: Architecture,
    where: str,
    importances: Importances,
) -> dict[str, Any]:
    """Return how far weights are off. Raises GymError where one is missing or off by more than its type rounds.

    `importances` are those of the columns of tensors that were searched by them.
    """
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    strange = (
        tensors.keys()
        ^ {place.tensor for place in places.values()}
        ^ ({FACTORS} if architectures.rope_factors(config) is not None else set())
    )
    if strange:
        raise GymError(f"{min(strange)} is missing in it, or has no place there", where=where, fix="report it")
    worst, apart, size, outputs, kinds = 0.0, 0.0, 0.0, 0.0, dict[str, int]()
    for name, weight in plain.weights:
        place = places[name]
        tensor = tensors[place.tensor]
        wanted = architectures.permutation(found, name, config)(weight.detach().float().cpu().numpy())
        got = _numbers(tensor, place)
        if got.shape != wanted.shape:
            raise GymError(f"{place.tensor} has the shape {list(got.shape)}, not {list(wanted.shape)}", where=where)
        kind = tensor.tensor_type.name
        columns = importances.get(place.tensor)
        off = farthest(wanted, got, kind, columns)
        if not off <= 1.0:
            raise GymError(
                f"{place.tensor} is {off:.3g} times as far off as {kind} rounds", where=where, fix="report it"
            )
        outputs = outputs if columns is None else max(outputs, relative(wanted, got, columns))
        kinds[kind] = kinds.get(kind, 0) + 1
        worst = max(worst, off)
        apart += float(((wanted.astype(np.float64) - got) ** 2).sum())
        size += float((wanted.astype(np.float64) ** 2).sum())
    return {
        "types": dict(sorted(kinds.items())),
        "of_rounding_bound": worst,
        "weights_relative_difference": (apart / size) ** 0.5 if apart else 0.0,
        **({"outputs_relative_difference": outputs} if importances else {}),
    }


def _numbers(tensor: Any, place: Place) -> Array:
    shape = tuple(int(size) for size in reversed(tensor.shape))
    data = tensor.data
    if place.expert is not None:
        data, shape = data[place.expert], shape[1:]
    return decoded(data, tensor.tensor_type).reshape(shape)


def arrays(reader: Any, names: Mapping[str, Place], config: Any, found: Architecture) -> dict[str, Array]:
    """Return all weights by their names in transformers."""
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    return {
        name: architectures.restored(found, name, config)(_numbers(tensors[place.tensor], place))
        for name, place in names.items()
    }

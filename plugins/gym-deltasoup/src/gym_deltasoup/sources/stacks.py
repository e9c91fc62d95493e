"""One model of layers of several: their tensors with new numbers, and a configuration of so many layers. Nothing is copied."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from gym_core import GymError
from gym_deltasoup.config.by_layer import FIRST, LAYER
from gym_deltasoup.sources.tensor_slices import Stored

COUNT = "num_hidden_layers"
EACH = ("layer_types", "mlp_layer_types")  #: keys of a configuration that say something of each layer, in a list
SAME = (COUNT, *EACH, "max_window_layers")  #: keys with `layer` in their name that are no reason to refuse


class Piece(NamedTuple):
    """Some layers of a model in a row."""

    path: Path
    begin: int
    end: int  #: behind the last


def layers_in(path: Path) -> int:
    """Return how many layers a model has. Raises GymError where its configuration does not say."""
    count = _config(path).get(COUNT)
    if not isinstance(count, int):
        why = f"its configuration has no `{COUNT}` of its own, so its layers cannot be counted"
        raise GymError(why, where=str(path), key="inputs.stack", fix="merge whole models: leave the layers out")
    return count


def checked(pieces: Iterable[Piece]) -> None:
    """Raise GymError where a model has not so many layers, or may not be put together from some of them."""
    for piece in pieces:
        count = layers_in(piece.path)
        if not 0 <= piece.begin < piece.end <= count:
            why = f"there are no layers {piece.begin} to {piece.end}: it has {count}, counted from 0, and the last is not part"
            raise GymError(why, where=str(piece.path), key="inputs.stack", fix=f"give two numbers from 0 to {count}")
        told = _config(piece.path)
        odd = sorted(key for key, value in told.items() if _per_layer(key, value))
        if odd:
            why = f"`{odd[0]}` says by number what its layers are, and these numbers would be others"
            raise GymError(
                why, where=str(piece.path), key="inputs.stack", fix="merge whole models: leave the layers out"
            )


def is_whole(pieces: Sequence[Piece]) -> bool:
    """Return whether these are all layers of one model, in their order."""
    one_after_other = all(one.end == other.begin for one, other in pairwise(pieces))
    same = len({piece.path.resolve() for piece in pieces}) == 1
    return same and one_after_other and pieces[0].begin == 0 and pieces[-1].end == layers_in(pieces[0].path)


def stacked(pieces: Sequence[Piece], tensors: Sequence[dict[str, Stored]]) -> dict[str, Stored]:
    """Return the tensors of each piece under the numbers that their layers get.

    What lies before the layers is that of the first piece, what comes behind them that of the last.
    """
    found: dict[str, Stored] = {}
    layer = 0
    for piece, own in zip(pieces, tensors, strict=True):
        for name, tensor in own.items():
            place = LAYER.search(name)
            if place is None:
                if piece is (pieces[0] if FIRST.search(name) else pieces[-1]):
                    found[name] = tensor
            elif piece.begin <= int(place[1]) < piece.end:
                number = layer + int(place[1]) - piece.begin
                found[name[: place.start(1)] + str(number) + name[place.end(1) :]] = tensor
        layer += piece.end - piece.begin
    return found


def configured(pieces: Sequence[Piece]) -> dict[str, Any]:
    """Return the configuration of the first model, with the layers of all pieces."""
    told = dict(_config(pieces[0].path))
    for key in EACH:
        if told.get(key):
            told[key] = [each for piece in pieces for each in _config(piece.path)[key][piece.begin : piece.end]]
    return told | {COUNT: sum(piece.end - piece.begin for piece in pieces)}


def _per_layer(key: str, value: Any) -> bool:
    """Return whether a key of a configuration tells layers apart by their number."""
    if key == "decoder_sparse_step":
        return bool(value not in (None, 1))
    if "layer" not in key or key in SAME or key.startswith("layer_norm"):
        return False
    return value not in (None, False, True, 0, []) and not isinstance(value, str | float)


def _config(path: Path) -> dict[str, Any]:
    found = json.loads((path / "config.json").read_text(encoding="utf-8"))
    return found if isinstance(found, dict) else {}

"""Whether a file of weights is what it says: refused here, it never meets the files of others."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gym_adapters.lora_checkpoint import PREFIX
from gym_core import GymError
from gym_deltasoup.rounds.base import Base, squared
from gym_deltasoup.rounds.contribution_store import lay_out
from gym_deltasoup.sources.model_tensors import in_model
from gym_deltasoup.sources.tensor_slices import Stored, sound
from gym_deltasoup.vector_merge import LARGEST
from gym_optim.promises import promised
from gym_torch.checkpoints.load_delta import DeltaCodec
from gym_torch.recorded_components import maker_of


class Refused(GymError):
    """A contribution that is not taken; the text says why."""


def check(file: Path, kind: str, details: Mapping[str, Any], base: Base, max_change: float, header_bytes: int) -> None:
    """Raise Refused where a file is no sound file of weights of this kind for this base."""
    if kind == "delta":
        _delta(file, details, base)
        return
    tensors = _read(file, header_bytes)
    if kind == "adapter":
        _adapter(tensors, details, base)
    else:
        _model(in_model(tensors, base.path), base, max_change)


def form(file: Path, kind: str, base: Base) -> str:
    """Return what has to be alike in contributions that are merged: layers of adapters, number formats of models."""
    if kind == "delta":
        return ""
    if kind == "adapter":
        return json.dumps(sorted(sound(file)))
    return json.dumps(sorted((name, str(each.dtype)) for name, each in in_model(sound(file), base.path).items()))


def _read(file: Path, header_bytes: int) -> dict[str, Stored]:
    with file.open("rb") as data:
        length = int.from_bytes(data.read(8), "little")
    if length > min(header_bytes, file.stat().st_size - 8):
        raise Refused(f"the header says that it has {length:,} bytes, and the file has {file.stat().st_size:,}")
    try:
        return sound(file)
    except GymError as error:
        raise Refused(error.problems[0].why) from None


def _model(tensors: Mapping[str, Stored], base: Base, max_change: float) -> None:
    for name in sorted({*tensors, *base.tensors}):
        if name not in tensors or name not in base.tensors:
            raise Refused(f"{'the base' if name in tensors else 'the model'} has no weight {name[:100]}")
        if tensors[name].shape != base.tensors[name].shape:
            raise Refused(f"{name} has the shape {list(tensors[name].shape)}, not {list(base.tensors[name].shape)}")
        if tensors[name].dtype.is_floating_point != base.tensors[name].dtype.is_floating_point:
            raise Refused(f"{name} is in {tensors[name].dtype}".replace("torch.", ""))
    moved = 0.0
    for name, stored in tensors.items():
        change = squared(stored, base.tensors[name])
        if not stored.dtype.is_floating_point and change:
            raise Refused(f"{name} holds whole numbers, which are not trained, and they differ from those of the base")
        moved += change
    _size(moved)
    if math.sqrt(moved) > max_change * base.norm:
        times = math.sqrt(moved) / base.norm
        raise Refused(f"it is {times:.2g} norms of the base away from it: it was trained from another base")


def _adapter(tensors: Mapping[str, Stored], details: Mapping[str, Any], base: Base) -> None:
    layers = {name.removeprefix(PREFIX).rpartition(".lora_")[0] for name in tensors}
    if not layers:
        raise Refused("there are no weights")
    rank, size = int(details["rank"]), 0.0
    scale = float(details["alpha"]) / rank
    if scale > LARGEST:
        raise Refused(f"it is scaled by {scale:.3g}, too large for a weight")
    for layer in sorted(layers):
        matrix = base.matrix(layer)
        if matrix is None:
            raise Refused(f"the base has no linear layer {layer[:100]}")
        wanted = {"A": (rank, matrix[1]), "B": (matrix[0], rank)}
        squares = 1.0
        for half, shape in wanted.items():
            stored = tensors.get(f"{PREFIX}{layer}.lora_{half}.weight")
            if stored is None or stored.shape != shape or not stored.dtype.is_floating_point:
                found = "is not there" if stored is None else f"is {list(stored.shape)} in {stored.dtype}"
                raise Refused(f"lora_{half} of {layer} {found}, not {list(shape)}".replace("torch.", ""))
            norm = squared(stored)
            _size(norm)  # of the product alone it would not be seen: both halves are read in fp32, each by itself
            squares *= norm
        size += squares
    if len(tensors) != 2 * len(layers):
        raise Refused("there are weights that belong to no pair A, B of a layer")
    _size(size * scale**2)


def _delta(file: Path, details: Mapping[str, Any], base: Base) -> None:
    with TemporaryDirectory() as folder:
        try:
            artifact = lay_out(file, "delta", details, base, Path(folder) / "delta")
            options = maker_of(artifact, "quantizers", artifact.details["delta"], "the delta was made")(
                **details["options"]
            )
            codec = promised(options.build(), DeltaCodec, options, "quantization")  # type: ignore[type-abstract]
            size = 0.0
            for name, change in codec.changes(artifact, base.path):
                if name not in base.tensors or base.tensors[name].shape != tuple(change.shape):
                    raise Refused(f"it changes {name[:100]} of shape {list(change.shape)}, which the base has not")
                size += float(change.double().square().sum())
        except Refused:
            raise
        except GymError as error:
            raise Refused(error.problems[0].why) from None
        except (
            ValueError,
            TypeError,
            KeyError,
            OSError,
            RuntimeError,
        ) as error:  # whatever strange bytes do to a codec
            raise Refused(f"it is no sound delta: {str(error).splitlines()[0][:100]}") from None
    _size(size)


def _size(squares: float) -> None:
    if math.isnan(squares):
        raise Refused("it holds NaN")
    if not math.sqrt(squares) <= LARGEST:
        raise Refused("it holds numbers that are infinite, or too large for a weight")

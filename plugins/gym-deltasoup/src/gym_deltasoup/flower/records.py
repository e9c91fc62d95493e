"""Weights as Flower sends them, and as files: names, shapes and number formats are those of the folder that all begin with.

What comes from a node is bytes of a stranger. Its header is read here, and the numbers behind it are taken as they lie: nothing
is unpickled, and nothing is as large as a header says before the bytes are there.
"""

from __future__ import annotations

import shutil
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from safetensors.torch import save_file
from torch import Tensor

from gym_adapters.lora_checkpoint import CONFIG, PREFIX, WEIGHTS, read_lora
from gym_core import GymError
from gym_deltasoup.sources.lora import LoraProduct
from gym_deltasoup.sources.model_tensors import tensors_of_model
from gym_deltasoup.sources.tensor_slices import Stored, tensors_of
from gym_torch.checkpoints.tokenizer_files import copy_tokenizer

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def kind_of(start: Path) -> str:
    """Return whether a folder is of a `model` or of a plain LoRA `adapter`. Raises GymError where it is neither."""
    if (start / CONFIG).is_file():
        LoraProduct(start)
        return "adapter"
    if (start / "config.json").is_file():
        return "model"
    raise GymError("there is no model and no adapter here", where=str(start), key="start")


def arrays_of(path: Path) -> ArrayRecord:
    """Return the weights in a folder. Formats that numpy has not, such as bf16, go as fp32, which holds them exactly."""
    found = {}
    for name, each in sorted(_weights(path).items()):
        values = each.read(0, each.numbers)
        if each.dtype.is_floating_point and each.dtype not in (torch.float16, torch.float32, torch.float64):
            values = values.float()
        found[name] = Array(values.reshape(each.shape).numpy())
    return ArrayRecord(found)


def merged_arrays(path: Path, start: Path) -> ArrayRecord:
    """Return a merged adapter with the scaling of the one that all began with, whose configuration nodes go on using."""
    theirs, merged = read_lora(start), read_lora(path)
    shares = {"lora_A": 1.0, "lora_B": merged.scaling / theirs.scaling}
    return ArrayRecord(
        {
            f"{PREFIX}{layer}.{half}.weight": Array((share * merged.pairs[layer][half]).numpy())
            for layer in sorted(theirs.pairs)
            for half, share in shares.items()
        }
    )


def write(arrays: ArrayRecord, start: Path, into: Path) -> Path:
    """Write what a node or the server sent as a folder like `start`. Raises GymError where it is not of that form."""
    wanted = _weights(start)
    strange = sorted({*arrays} ^ {*wanted})
    if strange:
        raise GymError(f"{'lacks' if strange[0] in wanted else 'has an unknown'} `{strange[0][:100]}`")
    weights = {name: _tensor(name, arrays[name], each) for name, each in wanted.items()}
    into.mkdir(parents=True)
    copy_tokenizer(start, into)
    adapter = (start / CONFIG).is_file()
    shutil.copyfile(start / (CONFIG if adapter else "config.json"), into / (CONFIG if adapter else "config.json"))
    save_file(weights, into / (WEIGHTS if adapter else "model.safetensors"), {"format": "pt"})
    return into


def _weights(path: Path) -> dict[str, Stored]:
    return (tensors_of if (path / CONFIG).is_file() else tensors_of_model)(path)


def _tensor(name: str, array: Array, wanted: Stored) -> Tensor:
    stream = BytesIO(array.data)
    try:
        shape, by_columns, dtype = _HEADERS[np.lib.format.read_magic(stream)](stream)
    except (ValueError, KeyError, EOFError):
        raise GymError(f"`{name}` is no array of numpy") from None
    if tuple(shape) != wanted.shape:
        raise GymError(f"`{name}` has the shape {[*shape]}, not {[*wanted.shape]}")
    exact = np.dtype(str(wanted.dtype).removeprefix("torch.")) if not wanted.dtype.is_floating_point else None
    if dtype.hasobject or (dtype.kind != "f" if exact is None else dtype != exact) or dtype.itemsize > 8:
        raise GymError(f"`{name}` has numbers of the format {dtype}")
    body = array.data[stream.tell() :]
    if len(body) != wanted.numbers * dtype.itemsize:
        raise GymError(f"`{name}` has {len(body)} bytes for {wanted.numbers} numbers")
    values = np.frombuffer(body, dtype).reshape(shape, order="F" if by_columns else "C")
    native = values.astype(dtype.newbyteorder("="), order="C")
    return torch.from_numpy(native).to(wanted.dtype)

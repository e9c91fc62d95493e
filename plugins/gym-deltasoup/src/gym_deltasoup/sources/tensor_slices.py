"""Numbers of tensors in files of safetensors, by where they begin and end: no tensor is read as a whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gym_core import GymError
from gym_torch.checkpoints.weight_shards import CODES
from gym_torch.model_files import weight_files

DTYPES = {code: dtype for dtype, code in CODES.items()}


class Stored(NamedTuple):
    """Where a tensor lies."""

    file: Path
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def numbers(self) -> int:
        """How many numbers it has."""
        return int(torch.Size(self.shape).numel())

    def read(self, begin: int, end: int) -> Tensor:
        """Return some of its numbers in a row, as they are stored."""
        size = self.dtype.itemsize
        buffer = bytearray((end - begin) * size)
        with self.file.open("rb", buffering=0) as file:
            file.seek(self.offset + begin * size)
            if file.readinto(buffer) != len(buffer):
                raise GymError("the file is shorter than its header says", where=str(self.file))
        return torch.frombuffer(buffer, dtype=self.dtype) if buffer else torch.empty(0, dtype=self.dtype)


def tensors_of(path: Path) -> dict[str, Stored]:
    """Return all tensors in the files of a directory, by name. Raises GymError where one is damaged, or its numbers unknown."""
    found: dict[str, Stored] = {}
    for file in weight_files(path, "inputs"):
        found |= sound(file)
    if not found:
        raise GymError("there are no weights in safetensors", where=str(path))
    return found


def sound(file: Path) -> dict[str, Stored]:
    """Return all tensors in a file, by name. Raises GymError where it is damaged, or its numbers unknown."""
    try:
        with safe_open(file, "pt"):  # which refuses headers that lie
            pass
    except (SafetensorError, OSError) as error:
        why = f"no sound file of safetensors: {str(error).splitlines()[0][:120]}"
        raise GymError(why, where=str(file)) from None
    with file.open("rb") as data:
        length = int.from_bytes(data.read(8), "little")
        header = json.loads(data.read(length))
    header.pop("__metadata__", None)
    found: dict[str, Stored] = {}
    for name, told in header.items():
        if told["dtype"] not in DTYPES:
            why = f"{name} has numbers of the format {told['dtype']}, which cannot be merged"
            raise GymError(why, where=str(file))
        place = 8 + length + told["data_offsets"][0]
        found[name] = Stored(file, place, DTYPES[told["dtype"]], tuple(told["shape"]))
    return found

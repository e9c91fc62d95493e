"""Reads and writes safetensors in plain Python, so that a law never lends a package a dependency it forgot to declare.

Meant for the small tensors of laws; slow for anything larger.
"""

from __future__ import annotations

import json
import math
import random
import struct
from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

_CODES = {"F64": "d", "F32": "f", "F16": "e", "I32": "i", "I16": "h", "I8": "b", "U8": "B"}


class Tensor(NamedTuple):
    """Numbers in row-major order."""

    shape: tuple[int, ...]
    values: Iterable[float]

    def list(self) -> list[float]:
        """Return the numbers."""
        return list(self.values)


def normal(shape: tuple[int, ...], seed: int, scale: float = 1.0) -> Tensor:
    """Draw a tensor of independent normal numbers with mean 0 and this standard deviation."""
    draw = random.Random(seed).gauss
    return Tensor(shape, array("f", (draw(0.0, scale) for _ in range(math.prod(shape)))))


def constant(shape: tuple[int, ...], value: float) -> Tensor:
    """Return a tensor that holds one number everywhere."""
    return Tensor(shape, array("f", [value]) * math.prod(shape))


def write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write fp32 tensors to a safetensors file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, tensor in sorted(tensors.items()):
        data = array("f", tensor.values).tobytes()
        offsets = [len(body), len(body) + len(data)]
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": offsets}
        body += data
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(struct.pack("<Q", len(head)) + head + body)


def read(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file, or every one in a directory, as Python numbers."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    found: dict[str, Tensor] = {}
    for file in files:
        data = file.read_bytes()
        (length,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + length])
        header.pop("__metadata__", None)
        for name, entry in header.items():
            start, stop = (8 + length + offset for offset in entry["data_offsets"])
            found[name] = Tensor(tuple(entry["shape"]), _numbers(data[start:stop], entry["dtype"]))
    return found


def from_array(value: Any) -> Tensor:
    """Convert an array of any library that has `shape`, `flatten` and `tolist`."""
    return Tensor(tuple(int(size) for size in value.shape), value.flatten().tolist())


def norm(values: Iterable[float]) -> float:
    """Return the Euclidean norm."""
    return math.sqrt(math.fsum(value * value for value in values))


def distance(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> float:
    """Return the Euclidean distance of two sets of tensors with the same names and shapes."""
    assert left.keys() == right.keys(), f"names differ: {sorted(left.keys() ^ right.keys())[:5]}"
    squares = []
    for name in left:
        assert left[name].shape == right[name].shape, f"{name}: shape {right[name].shape}, not {left[name].shape}"
        squares.append(norm(a - b for a, b in zip(left[name].values, right[name].values, strict=True)))
    return norm(squares)


def size(tensors: Mapping[str, Tensor]) -> float:
    """Return the Euclidean norm of a set of tensors."""
    return norm(norm(tensor.values) for tensor in tensors.values())


def _numbers(data: bytes, dtype: str) -> list[float]:
    if dtype == "BF16":  # the upper half of an fp32
        wide = b"".join(b"\0\0" + data[at : at + 2] for at in range(0, len(data), 2))
        return list(struct.unpack(f"<{len(data) // 2}f", wide))
    code = _CODES[dtype]
    return list(struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data))

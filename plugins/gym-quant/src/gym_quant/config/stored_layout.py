"""What a quantized weight is on the disk: names, shapes and number formats of the tensors that stand for it.

The files are those of compressed-tensors. The same function lays out the files and says their size beforehand; nothing here
needs torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import ceil, prod
from typing import NamedTuple

Stored = dict[str, tuple[str, tuple[int, ...]]]  #: number format and shape of each tensor of a file, by its name
BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "I8": 1, "U8": 1, "BOOL": 1}
SMALLEST_GROUP = 16
#: Rows of a gate, such as that of shared experts, which is not quantized: engines expect it whole, and compressed-tensors cannot
#: unpack the zero points of so few.
FEW_ROWS = 8
#: Names of the linear layers of decoders: in a numbered layer, and not what chooses experts.
_LINEAR = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.\d+\.(?!.*(?:norm|router|\bgate)\.weight$).*\.weight$")


class Scheme(NamedTuple):
    """How the numbers of a weight `[rows, columns]` are written."""

    bits: int
    group: int  #: columns of a row that share a scale; 0 is all of them
    symmetric: bool = True
    floating: bool = False  #: 8 bits of floating point (E4M3), not integers
    activations: bool = False  #: whether what comes in is rounded to 8 bits too, token by token

    def fitted(self, *columns: int) -> Scheme:
        """Return it for rows of so many columns: a group that does not divide them all is halved until it does, or is the row."""
        group = self.group
        while group > SMALLEST_GROUP and any(each % group for each in columns):
            group //= 2
        rows = any(each % group for each in columns) or all(each == group for each in columns) if group else True
        return self._replace(group=0 if rows else group)

    def groups(self, columns: int) -> int:
        """Return the scales of a row of so many columns."""
        return columns // self.group if self.group else 1

    def stored(self, name: str, shape: tuple[int, ...], dtype: str) -> Stored:
        """Return what stands for the weight `name` of this shape; scales have the number format `dtype`."""
        rows, columns = shape
        scales = (rows, self.groups(columns))
        if self.floating:
            return {name: ("F8_E4M3", shape), f"{name}_scale": (dtype, scales)}
        made: Stored = {
            f"{name}_packed": ("I32", (rows, ceil(columns * self.bits / 32))),
            f"{name}_scale": (dtype, scales),
            f"{name}_shape": ("I64", (2,)),
        }
        if not self.symmetric:
            made[f"{name}_zero_point"] = ("I32", (ceil(rows * self.bits / 32), scales[1]))
        return made


def linear(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a weight of this name belongs to a linear layer of a decoder, as far as names tell."""
    return len(shape) == 2 and shape[0] > FEW_ROWS and _LINEAR.search(name) is not None


def file_bytes(stored: Stored) -> int:
    """Return the size of a file of safetensors that holds these tensors, its header included."""
    return header_bytes(stored) + data_bytes(stored)


def data_bytes(stored: Stored) -> int:
    """Return the bytes of the numbers alone."""
    return sum(prod(shape) * BYTES[dtype] for dtype, shape in stored.values())


def header_bytes(stored: Stored) -> int:
    """Return the bytes before the first number."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in stored.items():
        begin, end = end, end + prod(shape) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    return 8 + len(json.dumps(header, separators=(",", ":"))) + 7 & ~7


def declared(shapes: Mapping[str, tuple[int, ...]], scheme: Scheme, dtype: str = "F32") -> int:
    """Return the bytes of a model whose linear layers are written in a scheme, and all else in the number format `dtype`."""
    stored: Stored = {}
    schemes = fitted(scheme, {name: shape[1] for name, shape in shapes.items() if linear(name, shape)})
    for name, shape in shapes.items():
        stored |= schemes[name].stored(name, shape, dtype) if name in schemes else {name: (dtype, shape)}
    return file_bytes(stored)


def fitted(scheme: Scheme, columns: Mapping[str, int]) -> dict[str, Scheme]:
    """Return the scheme of each weight, by the columns it has.

    With zero points one scheme is for all: transformers unpacks these while it loads, and knows but one there.
    """
    return {
        name: scheme.fitted(*([count] if scheme.symmetric else columns.values())) for name, count in columns.items()
    }

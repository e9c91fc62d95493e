"""How large the file of a delta is where every weight changed everywhere. Nothing here needs torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from gym_bitdelta.delta.header import KEY, PARTS, WIDTHS, Entry, Header, Raw, data_bytes, grouped
from gym_bitdelta.fit.quant_scheme import EMBEDDINGS, Coding

NOTHING: Mapping[str, Any] = MappingProxyType({})
Shapes = Mapping[str, tuple[int, ...]]
ORDER = ("F32", "I32", "F16", "U8")  #: in which safetensors writes number formats; of one, by name
PROVENANCE = {"made_from": "0" * 64, "safety": "not evaluated"}


def largest(shapes: Shapes, coding: Callable[[str], Coding | None], inside: Callable[..., bool]) -> dict[str, Entry]:
    """Return the largest entries of weights, by how the matrices inside layers are coded (None: as they are)."""
    found: dict[str, Entry] = {}
    for name, shape in shapes.items():
        chosen = coding(name) if inside(name, shape) else EMBEDDINGS if len(shape) == 2 else None
        found[name] = chosen.largest(shape) if chosen else Raw(shape=shape)
    return found


def file_bytes(
    entries: Mapping[str, Entry],
    config: Mapping[str, Any],
    changed: Mapping[str, Any] = NOTHING,
    provenance: Mapping[str, Any] = PROVENANCE,
) -> int:
    """Return the size of a file of these entries."""
    return data_bytes(entries) + header_bytes(entries, config, changed, provenance)


def header_bytes(
    entries: Mapping[str, Entry],
    config: Mapping[str, Any],
    changed: Mapping[str, Any] = NOTHING,
    provenance: Mapping[str, Any] = PROVENANCE,
) -> int:
    """Return the bytes before the first number; `config`, `changed` and `provenance` are those of the header."""
    header = Header(
        base="0" * 64, table=grouped(entries), config=dict(config), changed=dict(changed), provenance=dict(provenance)
    )
    parts, end = dict[str, Any](), 0
    for part, count in sorted(header.totals().items(), key=lambda item: (ORDER.index(PARTS[item[0]]), item[0])):
        begin, end = end, end + count * WIDTHS[PARTS[part]]
        parts[part] = {"dtype": PARTS[part], "shape": [count], "data_offsets": [begin, end]}
    return 8 + len(json.dumps({"__metadata__": {KEY: header.text()}} | parts, separators=(",", ":"))) + 7 & ~7

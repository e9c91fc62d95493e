"""Reads and writes the file of a delta: safetensors with a JSON header. Nothing in a file is believed before it is checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from gym_bitdelta.delta.header import FORMAT, KEY, PARTS, Dense, Entry, Header, grouped
from gym_bitdelta.delta.records import DTYPES, Record
from gym_core import GymError
from gym_core.files import replacing

NAME = "delta.safetensors"
TRIT_CODES = 3**5
SMALL = 2**24  #: numbers that any weight may have


@dataclass(frozen=True)
class Delta:
    """What a fine-tune changed, against a base named by its fingerprint."""

    header: Header
    records: Mapping[str, Record]  #: by the names of the weights in the model

    def check_base(self, fingerprint: str, where: str) -> None:
        """Raise GymError where the delta belongs to another base."""
        if fingerprint != self.header.base:
            raise GymError(
                f"this delta belongs to another base: fingerprint {self.header.base[:12]}, and that of {where} is "
                f"{fingerprint[:12]}",
                fix="use the very base that it was made from; the same shapes are not enough",
            )

    def check_size(self, numbers: int) -> None:
        """Raise GymError where a weight is far larger than a base of so many numbers: few bytes may stand for very many."""
        for name, record in self.records.items():
            if prod(record.entry.shape) > max(SMALL, 4 * numbers):
                raise GymError(
                    f"{name} stands for {prod(record.entry.shape):,} numbers, and the base has {numbers:,}",
                    fix="use the base that it was made from",
                )


def made(
    base: str,
    records: Mapping[str, Record],
    config: Mapping[str, Any],
    provenance: Mapping[str, Any],
    changed: Mapping[str, Any] = MappingProxyType({}),
) -> Delta:
    """Return the delta of these records against a base of this fingerprint; of the rest see `Header`."""
    table = grouped({name: record.entry for name, record in records.items()})
    header = Header(base=base, table=table, config=dict(config), changed=dict(changed), provenance=dict(provenance))
    return Delta(header, records)


def write(path: Path, delta: Delta) -> None:
    """Write a delta, all or nothing. The same delta gives the same bytes. Raises OSError where the disk does not take it."""
    flat: dict[str, list[Tensor]] = {part: [] for part in PARTS}
    # in the order that its text has
    header = delta.header.model_copy(update={"table": grouped(delta.header.entries())})
    for name in header.entries():
        for part, count in delta.records[name].entry.counts().items():
            tensor = delta.records[name].parts[part]
            if tensor.dtype != DTYPES[PARTS[part]] or tensor.shape != (count,):
                raise ValueError(f"{name}: {part} is {tensor.dtype} {tuple(tensor.shape)}, and {count} were to come")
            flat[part].append(tensor.cpu())
    whole = {part: torch.cat(tensors) for part, tensors in flat.items() if sum(map(len, tensors))}
    with replacing(path) as building:
        save_file(whole, building, {KEY: header.text()})


def read(path: Path) -> Delta:
    """Read a delta. Raises GymError where the file is none, is damaged, or says what cannot be."""
    header, flat = _opened(path)
    totals, found = header.totals(), {part: tensor.numel() for part, tensor in flat.items()}
    if totals != found:
        part = next(iter(sorted(part for part in {*totals, *found} if totals.get(part) != found.get(part))))
        raise _damaged(path, f"{found.get(part, 0)} numbers of `{part}`, and its table needs {totals.get(part, 0)}")
    records = {}
    for name, entry, places in header.places():
        records[name] = Record(entry, {part: _part(flat, part)[begin:end] for part, (begin, end) in places.items()})
        if wrong := _wrong(entry, records[name].parts):
            raise _damaged(path, f"{name}: {wrong}")
    return Delta(header, records)


def _part(flat: Mapping[str, Tensor], part: str) -> Tensor:
    return flat[part] if part in flat else torch.empty(0, dtype=DTYPES[PARTS[part]])


def header_of(path: Path) -> Header:
    """Return what a delta says of itself, without its numbers. Raises what `read` raises for a header."""
    said = _metadata(path).get(KEY)
    if said is None:
        raise _damaged(path, f"there is no `{KEY}` in its metadata")
    try:
        parsed = json.loads(said)
        layout = parsed.get("format") if isinstance(parsed, dict) else None
        if layout != FORMAT:
            raise GymError(
                f"this delta has the layout {str(layout)[:40]!r}, and this version reads {FORMAT!r}",
                where=str(path),
                fix="make it again, or use the version of gym-bitdelta that wrote it",
            )
        return Header.model_validate(parsed, strict=False)
    except (ValueError, RecursionError) as error:
        if not isinstance(error, ValidationError):
            raise _damaged(path, f"its header is no JSON: {str(error)[:100]}") from error
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][:4])
        raise _damaged(path, f"its header says what cannot be: {place}: {first['msg'][:120]}") from error


def _opened(path: Path) -> tuple[Header, dict[str, Tensor]]:
    header = header_of(path)
    flat = {}
    with safe_open(path, "pt") as file:  # which refuses offsets beyond the file
        for part in file.keys():  # noqa: SIM118 - it is no mapping
            if part not in PARTS:
                raise _damaged(path, f"it holds `{part}`, which belongs to no delta")
            tensor = file.get_tensor(part)
            if tensor.dtype != DTYPES[PARTS[part]] or tensor.dim() != 1:
                raise _damaged(path, f"`{part}` is {tensor.dtype} of shape {list(tensor.shape)}")
            flat[part] = tensor
    return header, flat


def _metadata(path: Path) -> Mapping[str, str]:
    try:
        with safe_open(path, "pt") as file:
            return dict(file.metadata() or {})
    except FileNotFoundError as error:
        raise GymError("there is no such delta", where=str(path)) from error
    except (SafetensorError, OSError) as error:
        raise _damaged(path, f"it is no file of safetensors ({str(error).splitlines()[0][:100]})") from error


def _wrong(entry: Entry, parts: Mapping[str, Tensor]) -> str:
    """Return what is wrong with the numbers of a weight; empty where nothing is."""
    for part, tensor in parts.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            return f"`{part}` are not finite"
    rows = parts.get("rows", torch.empty(0)).long()  # of int32 a difference may be too large
    if len(rows) and (int(rows[0]) < 0 or int(rows[-1]) >= entry.shape[0] or not (rows.diff() > 0).all()):
        return f"its rows are not in order, or are beyond the {entry.shape[0]} there are"
    if isinstance(entry, Dense) and entry.code == "ternary" and (parts["codes"] >= TRIT_CODES).any():
        return "its codes are not those of three values"
    return ""


def _damaged(path: Path, why: str) -> GymError:
    return GymError(f"this is no sound delta: {why}", where=str(path), fix="make it again, or get another copy")

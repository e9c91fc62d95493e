"""How a header writes its table: names that differ in their layer alone are one, and so are entries that differ in a number.

A row is `[ENTRY, {NAME: LAYERS, ...}]`. `#` in a name stands for each of the layers, such as `0-2,5`; without layers a name is
as it stands. A number of an entry that differs between the names of a row is a list there, with one for each name. So a model of
many layers takes a header of a few kilobytes, and nothing that one says expands to more than `MOST_NAMES` names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

LAYER = "#"
MOST_NAMES = 2**20
_RANGES = re.compile(r"(0|[1-9]\d{0,8})(-[1-9]\d{0,8})?(,(0|[1-9]\d{0,8})(-[1-9]\d{0,8})?)*")
_NUMBER = re.compile(r"0|[1-9]\d{0,8}")

Said = dict[str, Any]  #: an entry as plain data


def written(entries: Mapping[str, Said]) -> list[Any]:
    """Return the rows of a table of these entries, whatever their order."""
    alike: dict[str, list[tuple[str, int, str]]] = {}
    for name, said in entries.items():
        shape = {key: None if type(value) is int else value for key, value in said.items()}
        pattern, layer = _split(name)
        own = pattern == name and LAYER in name  # in a row of its own, for it may look like the pattern of others
        alike.setdefault(json.dumps([shape, own], sort_keys=True), []).append((pattern, layer, name))
    found = []
    for each in sorted(sorted(one) for one in alike.values()):
        layers = {
            pattern: _ranges(layer for _, layer, _ in some) for pattern, some in groupby(each, lambda one: one[0])
        }
        saids = [entries[name] for _, _, name in each]
        said = {key: _once([other[key] for other in saids]) for key in saids[0]}
        found.append([said, layers])
    return found


def read(table: Iterable[Any]) -> list[tuple[Said, list[str]]]:
    """Return entries, each with the names that have it, in the order of the rows. Raises ValueError for what is no table."""
    found: list[tuple[Said, list[str]]] = []
    count = 0
    for row in table:
        if not (isinstance(row, list | tuple) and len(row) == 2 and all(isinstance(part, dict) for part in row)):
            raise ValueError("a row is an entry and the names that have it")
        said, layers = row
        names: list[str] = []
        for pattern, ranges in layers.items():
            names += _names(pattern, ranges, MOST_NAMES - count - len(names))
        count += len(names)
        if not names:
            raise ValueError("a row has no names")
        differing = {key: value for key, value in said.items() if key != "shape" and isinstance(value, list)}
        for key, value in differing.items():
            if len(value) != len(names) or not all(type(number) is int for number in value):
                raise ValueError(f"`{key[:40]}` is no list of {len(names)} numbers")
        numbers = zip(*differing.values(), strict=True) if differing else iter([()] * len(names))
        for own, some in groupby(zip(numbers, names, strict=True), lambda pair: pair[0]):
            found.append((said | dict(zip(differing, own, strict=True)), [name for _, name in some]))
    return found


def _split(name: str) -> tuple[str, int]:
    """Return a name with its first number, that of its layer, taken out; and -1 where it has none."""
    parts = name.split(".")
    place = next((place for place, part in enumerate(parts) if _NUMBER.fullmatch(part)), None)
    if place is None or LAYER in parts:
        return name, -1
    return ".".join([*parts[:place], LAYER, *parts[place + 1 :]]), int(parts[place])


def _ranges(layers: Iterable[int]) -> str:
    """Return layers in order as `0-2,5`; nothing for a name without one."""
    runs: list[list[int]] = []
    for layer in layers:
        if layer < 0:
            return ""
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


def _names(pattern: str, ranges: Any, most: int) -> Iterator[str]:
    """Yield the names that a pattern stands for. Raises ValueError before there are more than `most`."""
    runs = list(_runs(pattern, ranges))
    if sum(len(run) for run in runs) > most:
        raise ValueError(f"its table names more than {MOST_NAMES:,} weights")
    if ranges == "":
        yield pattern
    before, _, after = f".{pattern}.".partition(f".{LAYER}.")
    for run in runs:
        for layer in run:
            yield f"{before}.{layer}.{after}"[1:-1]


def _runs(pattern: str, ranges: Any) -> Iterator[range]:
    if ranges == "":
        return
    if not isinstance(ranges, str) or not _RANGES.fullmatch(ranges) or LAYER not in pattern.split("."):
        raise ValueError(f"{str(ranges)[:40]!r} are no layers of {pattern[:60]!r}")
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if last and int(last) <= int(first):
            raise ValueError(f"{part!r} are no layers")
        yield range(int(first), int(last or first) + 1)


def _once(values: list[Any]) -> Any:
    """Return a value that is the same for all names, or one for each."""
    return values[0] if all(value == values[0] for value in values) else values

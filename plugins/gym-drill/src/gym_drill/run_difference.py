"""Whether two runs of one recipe made the same thing, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from safetensors import deserialize

from gym_drill.run_phases import newest
from gym_torch.loop.callbacks.json_lines_base import read_lines
from gym_torch.loop.callbacks.metrics_jsonl import FILE

STATE = "state.json"
QUANTIZED = "quantized"
WEIGHTS, CERTIFICATE = ".safetensors", "certificate.json"
_CLOCKED = ("seconds", "_per_second")  #: ends of the names of figures that the clock decides


def first_difference(left: Path, right: Path) -> str:
    """Return the first difference between two finished runs, empty where there is none.

    Compares what computes (precision), the curve of metrics, the model, what was quantized, every file of every export, and in
    the last checkpoint weights, optimizer state and progress. Files are held in memory one pair at a time.
    """
    return next(_differences(left, right), "")


def _differences(left: Path, right: Path) -> Iterator[str]:
    one, other = (json.loads((output / "run.json").read_text(encoding="utf-8")) for output in (left, right))
    yield from _values(one.get("precision"), other.get("precision"), "run.json: precision")
    curve, again = read_lines(left / FILE), read_lines(right / FILE)
    for number, (line, repeated) in enumerate(zip(curve, again, strict=False), start=1):
        yield from _values(timeless(line), timeless(repeated), f"{FILE} line {number}")
    yield from _values(len(curve), len(again), f"{FILE}: lines")
    yield from _tensors(left / "model", right / "model")
    if any((output / QUANTIZED).exists() for output in (left, right)):
        yield from _tensors(left / QUANTIZED, right / QUANTIZED)
    exports, written = (sorted(path.name for path in (output / "export").glob("[!.]*")) for output in (left, right))
    yield from _values(exports, written, "exports")
    for name in exports:
        yield from _files(left / "export" / name, right / "export" / name)
    yield from _values(newest(left), newest(right), "step of the last checkpoint")
    last, reached = (output / "checkpoints" / f"step-{newest(output):08d}" for output in (left, right))
    yield from _tensors(last, reached)
    state, found = (json.loads((path / STATE).read_text(encoding="utf-8")) for path in (last, reached))
    for part in ("optimizer", "progress", "source", "conditions"):
        yield from _values(timeless(state[part]), timeless(found[part]), f"{last.name}/{STATE}: {part}")


def _files(left: Path, right: Path) -> Iterator[str]:
    """Compare the files of two exports; what a certificate hashes has times in it."""
    names, found = (sorted(set(_below(directory, "*")) - {CERTIFICATE}) for directory in (left, right))
    yield from _values(names, found, f"{left.name}: files")
    if not names:
        yield f"{left.name}: there is nothing to compare"
    yield from _same_tensors(left, right, [name for name in names if name.endswith(WEIGHTS)])
    for name in names:
        if not name.endswith(WEIGHTS):
            yield from _bytes((left / name).read_bytes(), (right / name).read_bytes(), f"{left.name}/{name}")


def _tensors(left: Path, right: Path) -> Iterator[str]:
    """Compare the safetensors of two directories, tensor by tensor."""
    names, found = (_below(directory, f"*{WEIGHTS}") for directory in (left, right))
    yield from _values(names, found, f"{left.name}: files")
    if not names:
        yield f"{left.name}: there are no weights to compare"
    yield from _same_tensors(left, right, names)


def _below(directory: Path, pattern: str) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob(pattern) if path.is_file())


def _same_tensors(left: Path, right: Path, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        one, other = _read(left / name), _read(right / name)
        yield from _values(sorted(one), sorted(other), f"{left.name}/{name}: tensors")
        for tensor, (shape, data) in one.items():
            where = f"{left.name}/{name}: {tensor}"
            yield from _values(shape, other[tensor][0], where)
            yield from _bytes(data, other[tensor][1], where)


def _bytes(left: bytes, right: bytes, where: str) -> Iterator[str]:
    if len(left) != len(right):
        yield f"{where} has {len(left):,} bytes without kills, {len(right):,} with them"
    elif left != right:
        count = sum(a != b for a, b in zip(left, right, strict=True))
        yield f"{where} differs in {count:,} of {len(left):,} bytes"


def _read(path: Path) -> dict[str, tuple[str, bytes]]:
    """Return dtype with shape, and the bytes, of each tensor in a file."""
    found: list[tuple[str, dict[str, Any]]] = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
    return {name: (f"{tensor['dtype']} {tensor['shape']}", bytes(tensor["data"])) for name, tensor in found}


def _values(left: Any, right: Any, where: str) -> Iterator[str]:
    """Compare plain data; the innermost place that differs is named."""
    if isinstance(left, dict) and isinstance(right, dict) and left.keys() == right.keys():
        for key in left:
            yield from _values(left[key], right[key], f"{where}, {key}")
    elif left != right:
        yield f"{where}: {left!r} without kills, {right!r} with them"


def timeless(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record without the figures that the clock decides."""
    return {key: value for key, value in record.items() if not key.endswith(_CLOCKED)}

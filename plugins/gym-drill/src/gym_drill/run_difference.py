"""Whether two runs of one recipe made the same thing, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import deserialize

from gym_drill.run_phases import newest
from gym_torch.loop.callbacks.json_lines_base import read_lines
from gym_torch.loop.callbacks.metrics_jsonl import FILE

STATE = "state.json"
_CLOCKED = ("seconds", "_per_second")  #: ends of the names of figures that the clock decides


def first_difference(left: Path, right: Path) -> str:
    """Return the first difference between two finished runs, empty where there is none.

    Compares what computes (precision), the curve of metrics, the model, every export, and in the last checkpoint
    weights, optimizer state and progress. Files are held in memory one pair at a time.
    """
    return next(_differences(left, right), "")


def _differences(left: Path, right: Path) -> Iterator[str]:
    one, other = (json.loads((output / "run.json").read_text(encoding="utf-8")) for output in (left, right))
    yield from _values(one.get("precision"), other.get("precision"), "run.json: precision")
    curve, again = read_lines(left / FILE), read_lines(right / FILE)
    for number, (line, repeated) in enumerate(zip(curve, again, strict=False), start=1):
        yield from _values(_timeless(line), _timeless(repeated), f"{FILE} line {number}")
    yield from _values(len(curve), len(again), f"{FILE}: lines")
    yield from _tensors(left / "model", right / "model")
    exports, written = (sorted(path.name for path in (output / "export").glob("[!.]*")) for output in (left, right))
    yield from _values(exports, written, "exports")
    for name in exports:
        yield from _tensors(left / "export" / name, right / "export" / name)
    yield from _values(newest(left), newest(right), "step of the last checkpoint")
    last, reached = (output / "checkpoints" / f"step-{newest(output):08d}" for output in (left, right))
    yield from _tensors(last, reached)
    state, found = (json.loads((path / STATE).read_text(encoding="utf-8")) for path in (last, reached))
    for part in ("optimizer", "progress", "source", "conditions"):
        yield from _values(_timeless(state[part]), _timeless(found[part]), f"{last.name}/{STATE}: {part}")


def _tensors(left: Path, right: Path) -> Iterator[str]:
    """Compare the safetensors of two directories, tensor by tensor."""
    names, found = (
        sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*.safetensors"))
        for directory in (left, right)
    )
    yield from _values(names, found, f"{left.name}: files")
    if not names:
        yield f"{left.name}: there are no weights to compare"
    for name in names:
        one, other = _read(left / name), _read(right / name)
        yield from _values(sorted(one), sorted(other), f"{left.name}/{name}: tensors")
        for tensor, (shape, data) in one.items():
            where = f"{left.name}/{name}: {tensor}"
            yield from _values(shape, other[tensor][0], where)
            if data != other[tensor][1]:
                count = sum(a != b for a, b in zip(data, other[tensor][1], strict=True))
                yield f"{where} differs in {count:,} of {len(data):,} bytes"


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


def _timeless(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if not key.endswith(_CLOCKED)}

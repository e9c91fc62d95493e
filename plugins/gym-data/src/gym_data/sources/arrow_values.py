"""Rows of Arrow tables as Python values: what was written, and not what the columns add."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import types

from gym_core import DataError

RAW = ("bytes",)  #: keys of objects whose bytes are no text even where they could be: an image beside its `path`


def as_python(batch: pa.RecordBatch, path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch of a file.

    Objects of a column get all keys there that any of them has, and here lose those that are null: a tool call would be learnt
    with arguments that it does not have. Maps are objects, whose nulls were written. Bytes that are UTF-8 are text, which some
    programs do not mark as such; others, as those of images, stay bytes.

    Raises DataError where a map has a key twice.
    """
    kinds = {field.name: field.type for field in batch.schema}
    for row in batch.to_pylist():
        try:
            yield {name: _value(value, kinds[name]) for name, value in row.items()}
        except _Twice as error:
            why = f"the key `{error}` stands twice in one object"
            raise DataError(why, where=str(path), fix="give each key one value") from None


def as_written(value: Any) -> Any:
    """Return a value of such a row where the kinds of its columns are unknown."""
    if isinstance(value, dict):
        return {key: item if key in RAW else as_written(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [as_written(item) for item in value]
    return _text(value) if isinstance(value, bytes) else value


class _Twice(Exception):
    """A key of a map that stands there twice."""


def _value(value: Any, kind: pa.DataType) -> Any:
    if types.is_dictionary(kind):
        kind = kind.value_type
    if value is None:
        return None
    if types.is_map(kind):
        return _object(value, kind.item_type)
    if types.is_struct(kind):
        given = [(each, value[each.name]) for each in kind if value[each.name] is not None]
        return {each.name: item if each.name in RAW else _value(item, each.type) for each, item in given}
    if isinstance(value, list):
        return [_value(item, kind.value_type) for item in value]
    return _text(value) if isinstance(value, bytes) else value


def _object(pairs: list[tuple[Any, Any]], kind: pa.DataType) -> dict[Any, Any]:
    found = {}
    for key, item in pairs:
        name = _text(key) if isinstance(key, bytes) else key
        if name in found:
            raise _Twice(name)
        found[name] = _value(item, kind)
    return found


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value

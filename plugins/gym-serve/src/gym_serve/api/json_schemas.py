"""Schemas as libraries of many languages write them, without what says nothing of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: of texts, which answers are held to; to JSON Schema any other is a remark (2020-12, validation, section 7)
FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"})
NAMES: tuple[Any, ...] = ({"type": "string"}, {}, True)  #: `propertyNames` that every object has
NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})  #: schemas by name
VALUES = frozenset({"const", "enum", "default", "examples"})  #: which hold no schemas


def without_remarks(schema: Any) -> Any:
    """Return a schema without formats that nobody holds a text to, and without names of properties that may be any."""
    if isinstance(schema, list):
        return [without_remarks(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {key: value for key, value in schema.items() if not _remark(key, value)}
    return {key: value if key in VALUES else _inner(key, value) for key, value in kept.items()}


def _inner(key: str, value: Any) -> Any:
    if key in NAMED and isinstance(value, Mapping):
        return {name: without_remarks(each) for name, each in value.items()}
    return without_remarks(value)


def _remark(key: str, value: Any) -> bool:
    if key == "format":
        return isinstance(value, str) and value not in FORMATS
    return key == "propertyNames" and value in NAMES

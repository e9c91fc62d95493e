"""A component in words: its documentation, options and flat keys, read off its class."""

from __future__ import annotations

import inspect
from typing import Any

from gym_core.component import Component, Flat
from gym_core.discovery import Entry
from gym_core.loading import load


def describe(entry: Entry) -> dict[str, Any]:
    """Return kind, name, owner, documentation, paper and options of a component. Raises PluginError when it cannot load."""
    loaded = load(entry)
    if not (isinstance(loaded, type) and issubclass(loaded, Component)):
        return _head(entry, inspect.getdoc(loaded) or "") | {"target": entry.value, "options": []}
    options = [
        {
            "name": name,
            "type": _type_name(info.annotation),
            "default": "required" if info.is_required() else repr(info.get_default(call_default_factory=True)),
            "doc": " ".join((info.description or "").split()),
            "flat": [mark.key for mark in info.metadata if isinstance(mark, Flat)],
        }
        for name, info in loaded.model_fields.items()
    ]
    return _head(entry, inspect.getdoc(loaded) or "") | {"target": loaded.target, "options": options}


def _head(entry: Entry, doc: str) -> dict[str, Any]:
    keys = ("kind", "name", "dist", "version", "paper")
    return {key: value for key, value in entry._asdict().items() if key in keys} | {"doc": doc}


def _type_name(annotation: Any) -> str:
    return inspect.formatannotation(annotation).replace("typing.", "")

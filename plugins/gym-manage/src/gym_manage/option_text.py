"""The type and the default of an option as a person reads them: `list of rewards`, `number above 0 or none`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AnySet
from enum import Enum
from json import dumps  # bound here: what a plugin does to the module later changes no description
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from gym_core.component import Component, Config, Slot
from gym_core.discovery import entries

PLAIN = {
    bool: "true or false", int: "integer", float: "number", str: "text", Path: "path", NoneType: "none", Any: "anything",
    complex: "complex number", bytes: "bytes",
}  # fmt: skip
BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
BOUND = (annotated_types.Gt, annotated_types.Ge, annotated_types.Lt, annotated_types.Le, annotated_types.Interval)


def type_of(info: FieldInfo) -> str:
    """Say what an option may hold."""
    return _with(info.annotation, info.metadata)


def default_of(info: FieldInfo) -> str:
    """Say what an option is where a recipe leaves it out, as the recipe would write it."""
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True)
    if value is None or isinstance(value, str):
        return "none" if value is None else value or '""'
    return _name(value) if isinstance(value, Component) else dumps(value, default=_plain)


def _name(component: Component) -> str:
    """Return the name of a component's class among the installed ones."""
    cls = type(component)
    names = [entry.name for entry in entries(cls.kind) if entry.value.partition(":")[2] == cls.__name__]
    return next(iter(names), cls.__name__)


def _plain(value: Any) -> Any:
    if isinstance(value, Config):
        return value.model_dump(mode="json")
    return sorted(value) if isinstance(value, AnySet) else str(value)


def _with(annotation: Any, metadata: Sequence[Any]) -> str:
    """Say what a type with its annotations is."""
    slot = next((item for item in metadata if isinstance(item, Slot)), None)
    if slot is not None:
        several = slot.many or get_origin(annotation) in (list, tuple, Sequence)
        said = f"list of {slot.kind}" if several else slot.kind.removesuffix("s")
        return f"{said} or none" if NoneType in get_args(annotation) else said
    bounds = [
        f"{word} {getattr(item, key):g}"
        for item in metadata
        if isinstance(item, BOUND)
        for key, word in BOUNDS.items()
        if isinstance(getattr(item, key, None), int | float)
    ]
    parts = [_said(part) for part in _parts(annotation)]
    number = next((place for place, part in enumerate(parts) if part in ("integer", "number")), None)
    if bounds and number is not None:
        parts[number] = f"{parts[number]} {' and '.join(bounds)}"
    return " or ".join(dict.fromkeys(sorted(parts, key=lambda part: part == "none")))


def _parts(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _said(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _with(inner[0], inner[1:])
    if origin is Literal:
        return " or ".join(value if isinstance(value, str) else dumps(value) for value in inner)
    if origin in (Union, UnionType):
        return _with(annotation, ())
    if origin in (list, tuple, set, frozenset, Sequence):
        kinds = [item.kind for item in getattr(inner[0], "__metadata__", ()) if isinstance(item, Slot)]
        several = kinds or origin is not tuple or inner[-1:] == (...,)
        each = kinds or [_said(part) for part in (inner[:1] if several else inner)]
        return f"list of {', '.join(each)}"
    if origin in (dict, Mapping):
        return f"mapping of {_said(inner[0])} to {_said(inner[1])}"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _said(Literal[tuple(each.value for each in annotation)])
    if isinstance(annotation, type) and issubclass(annotation, Component):
        return annotation.kind.removesuffix("s")
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return f"mapping of {', '.join(annotation.model_fields)}"
    return PLAIN.get(annotation) or str(getattr(annotation, "__name__", annotation))

"""A JSON Schema (draft 2020-12) of every recipe that the installed components allow, for editors and programs."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from gym_core.component import Component, Flat, Slot
from gym_core.errors import PluginError, Problem
from gym_core.loading import load_all
from gym_core.sections import SLOTS, VALUES, nested_slots


def recipe_schema() -> tuple[dict[str, Any], list[Problem]]:
    """Return the schema, and the components that had to be left out because they cannot be imported."""
    definitions: dict[str, Any] = {}
    problems: list[Problem] = []
    properties = {section: _slot(slot, definitions, problems) for section, slot in SLOTS.items()}
    for section, value in VALUES.items():
        properties[section] = _inline(TypeAdapter(value).json_schema(), f"section.{section}", definitions)
    flat = _flat_keys(properties, definitions)
    built = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Gym recipe",
        "type": "object",
        "properties": {**flat, **properties},
        "additionalProperties": False,
        "$defs": definitions,
    }
    return built, list(dict.fromkeys(problems))


def _slot(slot: Slot, definitions: dict[str, Any], problems: list[Problem]) -> dict[str, Any]:
    choices: list[dict[str, Any]] = [{"type": "string"}] if slot.bare else []
    names = []
    for entry, cls in load_all(slot.kind):
        if isinstance(cls, PluginError):
            problems.extend(cls.problems)
            continue
        key = f"{slot.kind}.{entry.dist}.{entry.name}"
        names.append(entry.name)
        choices.append({"$ref": f"#/$defs/{key}"})
        if key not in definitions:
            definitions[key] = {}  # a component may hold its own kind
            definitions[key] = _component(slot, cls, key, entry.name, entry.qualified, definitions, problems)
    if names:
        choices.insert(0, {"enum": sorted(set(names))})
    if slot.bare:
        choices.append({"type": "array"})
    one = {"anyOf": choices} if choices else {"type": "null"}
    return {"anyOf": [one, {"type": "array", "items": one}]} if slot.many else one


def _component(
    slot: Slot,
    cls: type[Component],
    key: str,
    name: str,
    qualified: str,
    definitions: dict[str, Any],
    problems: list[Problem],
) -> dict[str, Any]:
    body = cls.model_json_schema()
    inner = body.pop("$defs", {})
    definitions.update({f"{key}.{part}": _moved(text, key) for part, text in inner.items()})
    body = _moved(body, key)
    for field, nested in nested_slots(cls).items():
        choice = _slot(nested, definitions, problems)
        doc = {"description": body["properties"][field].get("description", "")}
        body["properties"][field] = {"anyOf": [choice]} | doc
    selector = {"enum": [name, qualified]}
    if name != slot.default:
        body["required"] = [slot.selector, *body.get("required", [])]
    body["properties"] = {slot.selector: selector} | body.get("properties", {})
    return body | {"title": name}


def _inline(body: dict[str, Any], key: str, definitions: dict[str, Any]) -> dict[str, Any]:
    definitions.update({f"{key}.{part}": _moved(text, key) for part, text in body.pop("$defs", {}).items()})
    return _moved(body, key)


def _moved(body: Any, key: str) -> Any:
    """Point references at the shared definitions, under the component's own prefix."""
    if isinstance(body, dict):
        return {
            name: f"#/$defs/{key}.{value.removeprefix('#/$defs/')}" if name == "$ref" else _moved(value, key)
            for name, value in body.items()
        }
    return [_moved(item, key) for item in body] if isinstance(body, list) else body


def _flat_keys(properties: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of the flat dialect, each described by where it leads."""
    keys: dict[str, Any] = {}
    for section, slot in SLOTS.items():
        for entry, cls in load_all(slot.kind):
            if not isinstance(cls, PluginError):
                keys.update(_flat_of(cls, f"{section} `{entry.name}`"))
    for section, value in VALUES.items():
        if isinstance(value, type) and hasattr(value, "model_fields"):
            keys.update(_flat_of(value, section))
    return keys


def _flat_of(cls: Any, owner: str) -> dict[str, Any]:
    return {
        mark.key: {"description": f"Flat key of {owner}: `{name}`. {info.description or ''}".strip()}
        for name, info in cls.model_fields.items()
        for mark in info.metadata
        if isinstance(mark, Flat)
    }

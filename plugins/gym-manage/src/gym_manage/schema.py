"""A JSON Schema (draft 2020-12) of every recipe that the installed components allow, for editors and programs."""

from __future__ import annotations

import json
from typing import Any

import click
from pydantic import TypeAdapter

from gym_core.component import Slot
from gym_core.discovery import entries
from gym_core.errors import Problem
from gym_core.sections import SLOTS, VALUES
from gym_manage.inspection import PLAIN, About, inspect_all


@click.command("schema")
@click.option("--indent", default=2, show_default=True, help="Spaces of indentation.")
@click.option("--json", "as_json", is_flag=True, help="Accepted for symmetry: the output is always JSON.")
def command(indent: int, as_json: bool) -> None:
    """Print a JSON Schema of every installed component, so that an editor completes a recipe."""
    built, problems = recipe_schema()
    click.echo(json.dumps(built, indent=indent))
    for problem in problems:
        click.secho(f"warning: left out: {problem}", fg="yellow", err=True)


def recipe_schema() -> tuple[dict[str, Any], list[Problem]]:
    """Return the schema, and the components that had to be left out because they cannot be imported or described."""
    writer = _Writer(inspect_all(lambda entry: entry.kind not in PLAIN))
    properties = {section: writer.slot(slot) for section, slot in SLOTS.items()}
    for section, value in VALUES.items():
        properties[section] = writer.inline(TypeAdapter(value).json_schema(), f"section.{section}")
    marked: list[Any] = [{"required": [entry.name]} for entry in entries("dialects")]
    built = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Gym recipe",
        "type": "object",
        "properties": properties,
        # a file of another dialect has keys that its plugin alone knows
        "if": {"not": {"anyOf": marked or [False]}},
        "then": {"propertyNames": {"enum": [*properties]}},
        "$defs": writer.definitions,
    }
    return built, list(dict.fromkeys(writer.problems))


class _Writer:
    """Writes the schemas of components, each once, under `$defs`."""

    def __init__(self, told: dict[str, list[About]]) -> None:
        self.definitions: dict[str, Any] = {}
        self.problems = [problem for group in told.values() for about in group for problem in about.problems]
        self.told: dict[str, list[tuple[str, About]]] = {}
        for dist, group in told.items():
            for about in group:
                if not about.problems:
                    self.told.setdefault(about.kind, []).append((dist, about))

    def slot(self, slot: Slot) -> dict[str, Any]:
        """Return the schema of a place where a component is named."""
        choices: list[dict[str, Any]] = [{"type": "string"}] if slot.bare else []
        names: set[str] = set()
        for dist, about in self.told.get(slot.kind, ()):
            key = f"{slot.kind}.{dist}.{about.names[0]}"
            names.update(about.names)
            choices.append({"$ref": f"#/$defs/{key}"})
            if key not in self.definitions:
                self.definitions[key] = {}  # a component may hold its own kind
                try:
                    self.definitions[key] = self._component(slot, dist, about, key)
                except (AttributeError, LookupError, TypeError, RecursionError):  # a class may call anything its schema
                    self.problems.append(
                        Problem("its schema is none", f"{dist} ({key})", fix=f"update or uninstall {dist}")
                    )
        if names:
            choices.insert(0, {"enum": sorted(names)})
        if slot.bare:
            choices.append({"type": "array"})
        one = {"anyOf": choices} if choices else {"type": "null"}
        return {"anyOf": [one, {"type": "array", "items": one}]} if slot.many else one

    def _component(self, slot: Slot, dist: str, about: About, key: str) -> dict[str, Any]:
        body = self.inline(about.form, key)
        properties = body.setdefault("properties", {})
        for field, nested in about.slots.items():
            doc = {"description": properties[field].get("description", "")}
            properties[field] = {"anyOf": [self.slot(nested)]} | doc
        if slot.default not in about.names:
            body["required"] = [slot.selector, *body.get("required", [])]
        selector = {"enum": [name for short in about.names for name in (short, f"{dist}/{short}")]}
        return body | {"properties": {slot.selector: selector} | properties, "title": about.names[0]}

    def inline(self, body: dict[str, Any], key: str) -> dict[str, Any]:
        """Move the definitions of a schema among the shared ones."""
        inner = body.pop("$defs", {})
        self.definitions.update({f"{key}.{part}": _moved(text, key) for part, text in inner.items()})
        moved: dict[str, Any] = _moved(body, key)
        return moved


def _moved(body: Any, key: str) -> Any:
    """Point references at the shared definitions, under the component's own prefix."""
    if isinstance(body, dict):
        return {
            name: f"#/$defs/{key}.{value.removeprefix('#/$defs/')}" if name == "$ref" else _moved(value, key)
            for name, value in body.items()
        }
    return [_moved(item, key) for item in body] if isinstance(body, list) else body

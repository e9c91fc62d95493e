"""The forms of components: their options as words and as JSON Schema, from their config classes.

A component of another package is asked in a process of its own (`gym_manage.inspection`), once while the server runs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from gym_core.component import Config
from gym_core.discovery import Entry, entries, installed
from gym_core.sections import SLOTS, VALUES
from gym_core.train import Train
from gym_manage.inspection import PLAIN, inspect_all
from gym_manage.option_text import default_of, type_of
from gym_serve.api.errors import HTTPProblem

SECTIONS = {
    "model": "Model",
    "data": "Data",
    "algorithm": "Algorithm",
    "adapter": "Adapter",
    "optimizer": "Optimizer",
    "scheduler": "Schedule",
    "train": "Training",
    "quantization": "Quantization",
    "distributed": "Processes",
    "export": "Export",
    "callbacks": "Callbacks",
    "hooks": "Hooks",
    "output": "Output",
}  #: titles of the sections, in the order in which a form shows them


def sections() -> list[dict[str, Any]]:
    """Return every section: its title, and of a component what may be chosen, from package metadata alone."""
    return [
        {"name": name, "title": SECTIONS.get(name, name), **(_slot(name) if name in SLOTS else {"kind": ""})}
        for name in sorted((*SLOTS, *VALUES), key=[*SECTIONS].index)
    ]


def choices(kind: str) -> list[str]:
    """Return the names of a kind as a recipe writes them: with the distribution where several bring one."""
    found = entries(kind)
    names = [entry.name for entry in found]
    return sorted({each.qualified if names.count(each.name) > 1 else each.name for each in found})


@lru_cache(maxsize=512)
def form(kind: str, name: str) -> dict[str, Any]:
    """Return what a component does and its options. Raises HTTPProblem where there is none, or where it cannot be used."""
    if kind == "train":
        return {"doc": _first(Train.__doc__ or ""), "paper": "", "package": "gym-core", "options": _own(Train)}
    found = next((entry for entry in entries(kind) if name in (entry.name, entry.qualified)), None)
    if found is None or kind in PLAIN:
        raise HTTPProblem(404, "no such component is installed", "name", code="not_found")
    told = next(iter(inspect_all(lambda entry: entry == found).values()))[0]
    if told.problems:
        raise HTTPProblem(503, str(told.problems[0]), "name", code="broken_plugin")
    properties = told.form.get("properties", {})
    options = [
        {**option.model_dump(), **_control(properties.get(option.name, {}), told.slots.get(option.name))}
        for option in told.options
    ]
    return {"doc": told.doc, "paper": found.paper, "package": f"{found.dist} {found.version}", "options": options}


def _own(cls: type[Config]) -> list[dict[str, Any]]:
    properties = cls.model_json_schema().get("properties", {})
    return [
        {
            "name": name,
            "type": type_of(info),
            "default": default_of(info),
            "doc": " ".join((info.description or "").split()),
            **_control(properties.get(name, {}), None),
        }
        for name, info in cls.model_fields.items()
    ]


def _control(schema: dict[str, Any], slot: Any) -> dict[str, Any]:
    """Return how an option is asked for: `choices` of words where its schema has nothing else, or a `kind` of component."""
    if slot is not None:
        return {"kind": slot.kind, "choices": choices(slot.kind)}
    parts = [part for part in schema.get("anyOf", [schema]) if part.get("type") != "null"]
    if all(part.get("type") == "boolean" for part in parts):
        return {"kind": "", "choices": ["true", "false"]}
    words = [word for part in parts for word in part.get("enum", [part["const"]] if "const" in part else [None])]
    known = words and all(isinstance(word, str | int | float) for word in words)
    return {"kind": "", "choices": [str(word) for word in words] if known else []}


def _slot(name: str) -> dict[str, Any]:
    slot = SLOTS[name]
    return {
        "kind": slot.kind,
        "choices": choices(slot.kind),
        "default": slot.default or "",
        "implied": slot.implied,
        "bare": slot.bare or "",
        "selector": slot.selector,
        "many": slot.many,
    }


def _first(text: str) -> str:
    return " ".join(text.split())


def known(kind: str, name: str) -> Entry | None:
    """Return the component of this name; None where there is none."""
    return next((entry for entry in installed().entries.get(kind, ()) if name in (entry.name, entry.qualified)), None)

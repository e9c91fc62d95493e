"""A recipe as text, changed at one key: what a form does to it. Values follow the rules of the file, as KEY=VALUE does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gym_core.errors import RecipeError
from gym_core.sections import SECTIONS, SLOTS, dotted, normalise
from gym_core.yamlfile import parse_scalar, parse_yaml
from gym_manage.yaml_text import dump_yaml

NAME = "recipe.yaml"  #: what a text that was not saved is called in problems


def changed(text: str, path: Sequence[str | int], value: str | None) -> str:
    """Return the text with the value at a key path set, or removed where it is None; comments are lost.

    `path` begins with a section. Raises RecipeError where the text, the path or the value is none.
    """
    data = parse_yaml(text, NAME).data if text.strip() else {}
    *around, last = path
    if not path or path[0] not in SECTIONS or not all(isinstance(part, str | int) for part in path):
        raise RecipeError("is no key of a recipe", key=dotted(tuple(path))[:200])
    target: Any = data
    for end, part in enumerate(around, 1):
        inner = target[part] if _has(target, part) else None
        if end == 1 and part in SLOTS and not SLOTS[str(part)].many:
            inner = normalise(SLOTS[str(part)], inner)
        elif isinstance(inner, str):
            inner = {"name": inner}
        if not isinstance(inner, dict | list):
            inner = {}
        if isinstance(target, list) and not _has(target, part):
            raise RecipeError("is not in the list", key=dotted(tuple(path[:end])))
        target[part] = target = inner
    if value is None:
        if _has(target, last):
            del target[last]
    elif isinstance(target, list) and last == len(target):
        target.append(parse_scalar(value))
    elif isinstance(target, dict) or _has(target, last):
        target[last] = parse_scalar(value)
    _tidy(data, path)
    return dump_yaml({key: data[key] for key in sorted(data, key=_place)}) if data else ""


def _tidy(data: dict[str, Any], path: Sequence[str | int]) -> None:
    """Write the short form of a section that has no options left, and leave out what is empty."""
    section = str(path[0])
    value = data.get(section)
    slot = SLOTS.get(section)
    if value in ({}, []):
        del data[section]
    elif slot and isinstance(value, dict) and len(value) == 1:
        key = next(iter(value))
        if key == (slot.bare or slot.selector) and isinstance(value[key], str):
            data[section] = value[key]


def _has(target: Any, part: str | int) -> bool:
    if isinstance(target, list):
        return isinstance(part, int) and 0 <= part < len(target)
    return isinstance(target, dict) and part in target


def _place(key: str) -> tuple[int, str]:
    return (SECTIONS.index(key) if key in SECTIONS else len(SECTIONS), "")

"""Translates dialects of recipes into sections: the short form here, others by plugins.

The name of an entry point of the group `gym.dialects` is a key that only files of that dialect have. It refers to a function
`translate(data, found) -> sections`, which adds problems to `found` and uses `put`, so that errors point at lines of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from gym_core.component import Config, Slot
from gym_core.discovery import catalogue, installed, nearest
from gym_core.errors import GymError, PluginError, Problem, RecipeError
from gym_core.loading import find, load, load_component
from gym_core.sections import SECTIONS, SLOTS, Findings, Path, advised, dotted, named_elsewhere, nested_slots, normalise
from gym_core.train import Train

SYNONYMS = {"quantization": "method"}  #: what the short form calls the name of a section's component
COMMAND = "command line"  #: where an override stands


def translate(data: Mapping[str, Any], found: Findings) -> dict[str, Any]:
    """Return the sections of a recipe; `found` gains their paths, and a problem for each key that has no place in them."""
    own = {*SECTIONS, *Train.model_fields}
    known = [key for key in data if ("dialects", key) in installed().named or f"dialects/{key}" in catalogue()]
    marks = [key for key in known if key not in own]  # what the kernel knows marks nothing
    if not marks:
        sections, left = parted(data)
        fill_own(sections, left, found)
        return sections
    if len(marks) > 1:
        why = f"marks another dialect than `{marks[0]}`"
        raise RecipeError(why, where=found.where((marks[1],)), key=marks[1], fix="keep to one")
    entry = find("dialects", marks[0], marks[0], found.where((marks[0],)))
    try:
        translated = load(entry)(data, found)
    except GymError:
        raise
    except Exception as error:
        why = f"translating this file raised {type(error).__name__}: {error}"
        raise PluginError(why, where=entry.title, fix=f"report it to {entry.dist}") from error
    if not isinstance(translated, dict) or (strange := sorted(map(str, translated.keys() - set(SECTIONS)))):
        named = f"`{strange[0]}`, which is no section" if isinstance(translated, dict) else type(translated).__name__
        raise PluginError(f"it translates into {named}", where=entry.title, fix="return a mapping of sections")
    return translated


def parted(data: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the sections of a recipe, and its other keys."""
    sections = {key: value for key, value in data.items() if key in SECTIONS}
    for section, key in SYNONYMS.items():
        raw = sections.get(section)
        if isinstance(raw, dict) and key in raw and SLOTS[section].selector not in raw:
            sections[section] = {SLOTS[section].selector: raw[key]} | {k: v for k, v in raw.items() if k != key}
    return sections, {key: value for key, value in data.items() if key not in SECTIONS}


def chosen_names(sections: Mapping[str, Any]) -> dict[str, str]:
    """Return the name of the component in each section that has one, without its package; `train` is named `train`."""
    names = {"train": "train"}
    for section, slot in SLOTS.items():
        raw = normalise(slot, sections.get(section))
        name = (raw.get(slot.selector) if isinstance(raw, dict) else None) or slot.default
        if isinstance(name, str) and not slot.many:
            names[section] = name
    return names


def chosen_classes(sections: Mapping[str, Any]) -> dict[str, type[Config]]:
    """Return the options of the component in each section that has one, and of `train`."""
    classes: dict[str, type[Config]] = {"train": Train}
    for section, name in chosen_names(sections).items():
        with suppress(PluginError):  # which validation finds again
            classes[section] = classes.get(section) or load_component(SLOTS[section].kind, name)[1]
    return classes


def fill_own(
    sections: dict[str, Any], beside: Mapping[str, Any], found: Findings, known: Iterable[str] = ()
) -> list[str]:
    """Move options of the short form into the sections that have them. Returns the `known` keys left; notes others as wrong."""
    classes = chosen_classes(sections) if beside else {}
    left, written = [], {section for section, raw in sections.items() if isinstance(raw, dict)}
    for key, value in beside.items():
        having = [section for section, cls in classes.items() if key in cls.model_fields]
        having = [section for section in having if section not in written] or having
        if value is None and (having or key in known):
            continue  # what it is without
        if len(having) > 1:
            both = " and ".join(f"`{section}.{key}`" for section in having)
            found.problems.append(Problem(f"could mean {both}", found.where((key,)), key, "write the section out"))
        elif having:
            put(sections, (having[0], key), value, key, found)
        elif key in known:
            left.append(key)
        else:
            found.problems.append(_homeless(key, found, [*SECTIONS, *known], classes.values()))
    return left


def put(sections: dict[str, Any], path: tuple[str, ...], value: Any, key: str, found: Findings) -> None:
    """Set a section, or an option of one, to the value of `key`. Adds a problem where another value is set already."""
    target = mapping_of(sections, path[0]) if len(path) > 1 else sections
    if target.get(path[-1], value) != value:
        why = f"contradicts `{found.keys.get(path, dotted(path))}`"
        found.problems.append(Problem(why, found.where((key,)), key, "give it once"))
        return
    target[path[-1]] = value
    found.marks[path], found.keys[path] = found.where((key,)), key


def mapping_of(sections: dict[str, Any], section: str) -> dict[str, Any]:
    """Expand the short form of a section to a mapping, in place, and return it."""
    raw = sections.get(section)
    written = normalise(SLOTS[section], raw) if section in SLOTS else raw
    sections[section] = mapping = dict(written) if isinstance(written, dict) else {}
    return mapping


def _homeless(key: str, found: Findings, known: Iterable[str], classes: Iterable[type[Config]]) -> Problem:
    """Explain a key that no selected component has."""
    if meant := named_elsewhere(key, classes):
        return Problem("unknown key", found.where((key,)), key, f"did you mean `{meant}`?")
    options = (name for cls in classes for name in cls.model_fields)
    why, fix = advised(key, nearest(key, known, cutoff=0.75) or nearest(key, options, cutoff=0.75), found)
    return Problem(why, found.where((key,)), key, fix or "see `gym schema` for every key")


def apply_override(data: dict[str, Any], text: str, value: Any, slots: Mapping[str, Slot] = SLOTS) -> Path:
    """Set `a.b.c` to a value in raw data, of a recipe unless other `slots` say where its components are; return the key path.

    Expands short forms on it. Raises RecipeError where something on it holds no options, PluginError for a missing plugin.
    """
    *around, last = path = tuple(text.split("."))
    target = data
    for end, part in enumerate(around, 1):
        slot, key = slots.get(part), dotted(path[:end])
        inner = target.get(part)
        several = isinstance(inner, list) and (slot is None or slot.many or slot.bare is None)
        inner = normalise(slot, inner) if slot and not several else inner
        if several or (slot and slot.many and end == 1):
            raise RecipeError("is a list", where=COMMAND, key=key, fix=f"give all of it: {key}='[...]'")
        if not isinstance(inner, dict | None):
            why = f"is {inner!r:.60}, which has no `{'.'.join(path[end:])}`"
            raise RecipeError(why, where=COMMAND, key=key, fix=f"set it as a whole: {key}=...")
        target[part] = target = dict(inner or {})
        slots = _within(slot, target, key) if slot and end < len(around) else {}
    target[last] = value
    return path


def _within(slot: Slot, options: Mapping[str, Any], key: str) -> dict[str, Slot]:
    """Return the places for components inside the component of these options."""
    name = options.get(slot.selector) or slot.default
    return nested_slots(load_component(slot.kind, name, key, COMMAND)[1]) if isinstance(name, str) else {}

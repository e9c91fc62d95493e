"""The flat dialects: LLaMA-Factory's files and the short form, translated into sections.

The translation is data that plugins own. Entry points of group `gym.flat` say which component a flat key selects (`stage.dpo`)
and to which other it yields (`stage.dpo.pref_loss`), `Flat` marks which field it fills. Only what is selected is loaded.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from gym_core.component import Config, Flat
from gym_core.discovery import Entry, entries, named
from gym_core.errors import PluginError, Problem, RecipeError
from gym_core.loading import catalogue, load_component
from gym_core.owners import owners
from gym_core.sections import SECTION_OF, SECTIONS, SLOTS, VALUES, Findings, Path, normalise
from gym_core.train import Train

WHOLE = "model_name_or_path"  #: a file with this key is LLaMA-Factory's: what it leaves out means what it means there
TOP = {"output_dir": "output"}  #: flat keys that are a section by themselves
SYNONYMS = {"quantization": "method"}  #: what the short form calls the name of a section's component
PAIRS = ("optim_args",)  #: flat keys that hold `name=value, ...`, each a flat key by itself: `optim_args.name`
STATED = {"do_train": True, "report_to": "none", "save_only_model": False}  #: flat keys that state what happens anyway


class Place(NamedTuple):
    """Where a flat key leads."""

    section: str
    field: str
    mark: Flat


def translate(data: Mapping[str, Any], found: Findings) -> dict[str, Any]:
    """Return the sections that a recipe means. Notes every key that cannot be placed.

    `found.marks` and `found.keys` gain the translated paths, so that later problems name the user's own key and line.
    """
    sections = {key: value for key, value in data.items() if key in SECTIONS}
    for section, key in SYNONYMS.items():
        raw = sections.get(section)
        if isinstance(raw, dict) and key in raw and SLOTS[section].selector not in raw:
            sections[section] = {SLOTS[section].selector: raw[key]} | {k: v for k, v in raw.items() if k != key}
    flat = {key: value for key, value in data.items() if key not in SECTIONS}
    if not flat:
        return sections
    found.marks, found.keys = dict(found.marks), dict(found.keys)
    whole = WHOLE in flat
    _take_apart(flat, found)
    chosen, spent = _select(sections, flat, whole, found)
    for key in sorted(TOP.keys() & flat.keys()):
        _put(sections, (TOP[key],), flat.pop(key), key, found)
    for key, expected in STATED.items():
        if flat.pop(key, expected) != expected:
            found.problems.append(Problem("is not supported", found.where((key,)), key, f"set it to {expected}"))
    classes = selected(sections)
    places = flat_places(classes, chosen)
    flat |= {key: spent[key] for key in chosen.values() if key in spent and key in places}
    for key, value in flat.items():
        if value is None:
            continue
        targets = places.get(key) or own_fields(classes).get(key, [])
        if not targets:
            found.problems.append(_elsewhere(key, classes, chosen, found) or _homeless(key, found, places))
        elif len({(place.section, place.field) for place in targets}) > 1:
            both = " and ".join(f"`{place.section}.{place.field}`" for place in targets)
            found.problems.append(Problem(f"could mean {both}", found.where((key,)), key, "write the section out"))
        else:
            _fill(sections, targets[0], value, key, found)
    if whole:
        _defaults(sections, places, flat, chosen, found)
    return sections


def _take_apart(flat: dict[str, Any], found: Findings) -> None:
    """Make flat keys of those that one key holds."""
    assert isinstance(found.marks, dict)
    for key in PAIRS:
        for pair in str(flat.pop(key, None) or "").replace(" ", "").split(","):
            name, sign, value = pair.partition("=")
            if sign:
                flat[f"{key}.{name}"] = value
                found.marks[f"{key}.{name}",] = found.where((key,))
            elif pair:
                fix = "write name=value, ..."
                found.problems.append(Problem(f"`{pair}` has no value", found.where((key,)), key, fix))


def flat_places(classes: Mapping[str, type[Config]], chosen: Mapping[str, str]) -> dict[str, list[Place]]:
    """Return every flat key that the fields of these sections declare; `chosen` has the flat key that chose a section."""
    places: dict[str, list[Place]] = {}
    for section, name, mark in _marks(classes):
        if mark.chosen_by in ("", chosen.get(section, mark.chosen_by)):
            places.setdefault(mark.key, []).append(Place(section, name, mark))
    return places


def _marks(classes: Mapping[str, type[Config]]) -> Iterator[Place]:
    for section, cls in classes.items():
        for name, info in cls.model_fields.items():
            yield from (Place(section, name, mark) for mark in info.metadata if isinstance(mark, Flat))


def own_fields(classes: Mapping[str, type[Config]]) -> dict[str, list[Place]]:
    """Return the fields of these sections under their own names: the short form."""
    places: dict[str, list[Place]] = {}
    for section, cls in classes.items():
        for name in cls.model_fields:
            places.setdefault(name, []).append(Place(section, name, Flat(name)))
    return places


def selected(sections: Mapping[str, Any]) -> dict[str, type[Config]]:
    """Return the config class of each section, as far as it can be loaded; errors are found again when it is validated."""
    classes: dict[str, type[Config]] = {"train": Train}
    for section, slot in SLOTS.items():
        raw = normalise(slot, sections.get(section))
        name = (raw.get(slot.selector) if isinstance(raw, dict) else None) or slot.default
        if isinstance(name, str) and not slot.many:
            with suppress(PluginError):
                classes[section] = load_component(slot.kind, name)[1]
    return classes


def _select(
    sections: dict[str, Any], flat: dict[str, Any], whole: bool, found: Findings
) -> tuple[dict[str, str], dict[str, Any]]:
    """Name the components that flat keys choose. Return the key that chose each section, and the values that were taken."""
    spent: dict[str, Any] = {}
    choices: dict[str, dict[str, list[Entry]]] = {}
    for name in {entry.name for entry in entries("flat")}:
        key, _, value = name.partition(".")
        if key not in {*flat_places({"train": Train}, {}), *TOP, *STATED, WHOLE}:  # what has a meaning selects nothing
            choices.setdefault(key, {})[value] = named("flat", name)
    values = {key: str(flat.get(key)).lower() for key in flat}
    picked = {key: of.get(values.get(key, ""), of.get("*", [])) for key, of in choices.items()}
    first_party = {name.removeprefix("flat/").partition(".")[0] for name in catalogue() if name.startswith("flat/")}
    keys, said = choices.keys() | (first_party & flat.keys()), dict[str, tuple[str, type[Config]]]()
    meant = {key for key in keys if str(flat.get(key)).lower() not in ("none", "false")}
    for key in sorted(keys, key=lambda key: (flat.get(key) is None, key)):  # what is said outweighs what is left out
        options, given = choices.get(key, {}), flat.get(key) is not None
        chosen, value = picked.get(key, []) if given else options.get("default", []), values.get(key, "")
        if not given and not (whole and "default" in options):
            continue
        narrower = [(other, entry.dist) for other in meant for entry in options.get(f"{value}.{other}", [])]
        if given:
            spent[key] = (
                flat.get(key) if "*" in options else flat.pop(key)
            )  # where any value will do, it is an option's
        if given and value == "false" and not chosen:
            continue
        if given and any(dist in {entry.dist for entry in picked.get(other, [])} for other, dist in narrower):
            continue
        if len(chosen) != 1:
            problem = _no_choice(key, value if given else "default", options, chosen, found)
            found.problems.append(problem)
            found.plugins.add(problem)
            continue
        kind, name = _component_of(chosen[0])
        section, cls = SECTION_OF[kind], load_component(kind, name)[1]
        if section not in sections:
            said[section] = key, cls
            _put(sections, (section,), {SLOTS[section].selector: name}, key, found)
        elif given and said.get(section, (key, cls))[1] is not cls:
            found.problems.append(Problem(f"contradicts `{said[section][0]}`", found.where((key,)), key, "give one"))
    return {section: key for section, (key, _) in said.items()}, spent


def _component_of(choice: Entry) -> tuple[str, str]:
    """Return kind and name of the component that a `gym.flat` entry leads to: the one with the same value and owner."""
    for kind in SECTION_OF:
        for entry in entries(kind):
            if (entry.value, entry.dist) == (choice.value, choice.dist):
                return kind, entry.name if named(kind, entry.name) == [entry] else entry.qualified
    raise PluginError(f"gym.flat `{choice.name}` leads to no component", where=f"{choice.dist} {choice.version}")


def _no_choice(key: str, value: str, options: Mapping[str, list[Entry]], two: list[Entry], found: Findings) -> Problem:
    where = found.where((key,))
    if two:
        both = " and ".join(f"{entry.dist} {entry.version}" for entry in two)
        fix = f"gym plugins choose flat/{two[0].name} {two[0].dist}"
        return Problem(f"two plugins bring `{value}`: {both}", where, key, fix)
    package = catalogue().get(f"flat/{key}.{value}") or catalogue().get(f"flat/{key}.*")
    known = sorted(option for option in options if option != "default" and "." not in option)
    fix = f"pip install {package}" if package else f"installed: {', '.join(known)}"
    return Problem(f"no installed plugin brings `{value}`", where, key, fix)


def _fill(sections: dict[str, Any], place: Place, value: Any, key: str, found: Findings) -> None:
    convert = place.mark.convert
    try:
        if convert:
            value = convert.get(value, value) if isinstance(convert, Mapping) else convert(value)
    except (ValueError, TypeError) as error:
        found.problems.append(Problem(str(error), found.where((key,)), key))
        return
    if value is not None:
        _put(sections, (place.section, place.field), value, key, found)


def _defaults(
    sections: dict[str, Any],
    places: Mapping[str, list[Place]],
    flat: Mapping[str, Any],
    chosen: Mapping[str, str],
    found: Findings,
) -> None:
    for key, targets in places.items():
        for place in targets:
            meant = place.mark.chosen_by in ("", chosen.get(place.section))
            present = place.section in sections or place.section == "train" or SLOTS[place.section].implied
            missing = meant and present and place.mark.default is not None and flat.get(key) is None
            if missing and place.field not in _mapping(sections, place.section):
                _fill(sections, place, place.mark.default, key, found)


def _mapping(sections: dict[str, Any], section: str) -> dict[str, Any]:
    """Write a section out as a mapping, in place."""
    raw = sections.get(section)
    written = normalise(SLOTS[section], raw) if section in SLOTS else raw
    sections[section] = dict(written) if isinstance(written, dict) else {}
    mapping: dict[str, Any] = sections[section]
    return mapping


def _put(sections: dict[str, Any], path: tuple[str, ...], value: Any, key: str, found: Findings) -> None:
    target: dict[str, Any] = _mapping(sections, path[0]) if len(path) > 1 else sections
    if target.get(path[-1], value) != value:
        found.problems.append(Problem(f"contradicts `{'.'.join(path)}`", found.where((key,)), key, "give it once"))
        return
    target[path[-1]] = value
    assert isinstance(found.marks, dict) and isinstance(found.keys, dict)
    found.marks[path], found.keys[path] = found.where((key,)), key


def _elsewhere(
    key: str, classes: Mapping[str, type[Config]], chosen: Mapping[str, str], found: Findings
) -> Problem | None:
    """Explain a key that counts where another one chooses the component."""
    by = next(((section, mark.chosen_by) for section, _, mark in _marks(classes) if mark.key == key), None)
    if by is None or by[0] not in chosen:
        return None
    why = f"goes with `{by[1]}`, and here `{chosen[by[0]]}` chooses the {by[0]}"
    return Problem(why, found.where((key,)), key, f"write the section `{by[0]}` out, or choose by `{by[1]}`")


def _homeless(key: str, found: Findings, places: Mapping[str, list[Place]]) -> Problem:
    """Explain a key that no selected component has: it belongs to another one, or it is misspelt."""
    where = found.where((key,))
    known = {*SECTIONS, *places, *TOP, *STATED, *(entry.name.partition(".")[0] for entry in entries("flat"))}
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    for kind, section in SECTION_OF.items():
        having = [
            (item.name not in key, item.depth, item.name, item.dist)
            for item in owners()
            if item.kind == kind and item.key == key and (item.flat or not near)
        ]
        if having:
            # The one that the key is named after goes first, then the one that others inherit it from.
            _, _, name, dist = min(having)
            noun = section if section != "export" else "exporter"
            return Problem(f"belongs to {noun} `{name}` ({dist})", where, key, f"set `{section}: {name}`")
    fix = f"did you mean `{near[0]}`?" if near else "see `gym schema` for every key"
    return Problem("unknown key", where, key, fix)


def apply_override(data: dict[str, Any], text: str, value: Any) -> Path:
    """Set `a.b.c` to a value in raw recipe data, writing short forms out on the way; returns the key path."""
    head, *rest = text.split(".")
    if not rest:
        data[head] = value
        return (head,)
    if head in SLOTS and SLOTS[head].many:
        raise RecipeError("is a list", where="command line", key=head, fix=f"give all of it: {head}='[...]'")
    target: dict[str, Any] = _mapping(data, head) if head in SLOTS or head in VALUES else data.setdefault(head, {})
    for part in rest[:-1]:
        inner = target.get(part)
        target[part] = dict(inner) if isinstance(inner, dict) else {}
        target = target[part]
    target[rest[-1]] = value
    return (head, *rest)

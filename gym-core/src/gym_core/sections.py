"""The sections of a recipe, and how raw values become validated components; all problems are collected, then reported."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from gym_core.component import Component, Config, Slot, owner
from gym_core.discovery import Entry, entries, installed, nearest
from gym_core.errors import PluginError, Problem
from gym_core.loading import find, having, is_a_place, load, load_component, reason
from gym_core.train import Train

Path = tuple[str | int, ...]

SLOTS: dict[str, Slot] = {
    "model": Slot("backends", default="transformers", bare="path", selector="backend"),
    "data": Slot("data", default="dataset", bare="sources"),
    "algorithm": Slot("algorithms"),
    "adapter": Slot("adapters"),
    "optimizer": Slot("optimizers", default="adamw", implied=True),
    "scheduler": Slot("schedulers", default="linear", implied=True),
    "quantization": Slot("quantizers"),
    "distributed": Slot("strategies", default="ddp", implied=True),
    "export": Slot("exporters", many=True),
    "callbacks": Slot("callbacks", many=True),
}
VALUES: dict[str, Any] = {"train": Train, "hooks": tuple[str, ...], "output": str}
SECTIONS = (*SLOTS, *VALUES)  #: the top-level keys; a plugin cannot add one
SECTION_OF = {slot.kind: section for section, slot in SLOTS.items()}


class Resolved(NamedTuple):
    """A component that a recipe uses: its place, its distribution, and the code that will run."""

    path: Path
    kind: str
    name: str  #: without its distribution, however the recipe wrote it
    dist: str
    version: str
    config: str  #: `module:class` of the configuration
    target: str  #: `module:name` of the implementation
    selector: str  #: key that holds the name in the canonical recipe


@dataclass
class Findings:
    """Results of validating a recipe: components, problems, and where each key is written."""

    marks: dict[Path, str] = field(default_factory=dict)  #: `file:line` of a key path
    keys: dict[Path, str] = field(default_factory=dict)  #: the user's own key where a dialect was translated
    problems: list[Problem] = field(default_factory=list)
    resolved: list[Resolved] = field(default_factory=list)
    plugins: set[Problem] = field(default_factory=set)  #: those of the problems that installing a package solves
    folder: FilePath | None = None  #: folder of the recipe file; None for a mapping
    taken_back: set[Path] = field(default_factory=set)  #: what the file says and the command line sets to null
    chosen: Callable[[], Mapping[str, type[Config]]] = dict  #: classes of the components of a recipe, by section

    def where(self, path: Path) -> str:
        """Return `file:line` of the key, or of the nearest key around it that is written in the file."""
        return next((self.marks[path[:end]] for end in range(len(path), -1, -1) if path[:end] in self.marks), "")

    def key(self, path: Path) -> str:
        """Return the key as the user wrote it."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.keys:
                return self.keys[path[:end]] + dotted(path[end:], start=False)
        return dotted(path)

    def add(self, path: Path, why: str, fix: str = "") -> None:
        """Add a problem."""
        self.problems.append(Problem(why, self.where(path), self.key(path), fix))

    def lacks(self, error: PluginError) -> None:
        """Add the problems of a component that cannot be used, which installing a package may solve."""
        self.problems.extend(error.problems)
        self.plugins.update(error.problems)

    def resolve(self, path: Path, kind: str, entry: Entry, target: str, selector: str = "") -> None:
        """Add a component."""
        self.resolved.append(Resolved(path, kind, entry.name, entry.dist, entry.version, entry.value, target, selector))


def dotted(path: Path, start: bool = True) -> str:
    """Write a key path as `data.sources[0].path`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".") if start else text


def normalise(slot: Slot, raw: Any) -> Any:
    """Expand the short forms of a component: a bare string or list becomes a mapping."""
    if isinstance(raw, str) and (slot.bare is None or (slot.kind, raw) in installed().named):
        return {slot.selector: raw}
    if isinstance(raw, str | list) and slot.bare is not None:
        return {slot.bare: raw}
    return {} if raw is None and slot.default else raw


def component(slot: Slot, raw: Any, path: Path, found: Findings) -> Component | None:
    """Turn the raw value of a slot into a component; None after adding a problem."""
    options = normalise(slot, raw)
    if not isinstance(options, dict):
        fix = "put a name in quotes" if isinstance(raw, bool | int | float) else "save it, and give its path"
        fix = "" if raw is None or isinstance(raw, list) else fix
        found.add(path, f"expected a name or a mapping, not {type(raw).__name__}", fix)
        return None
    given = options.get(slot.selector)
    name = slot.default if given is None else given
    if name is None:
        found.add(path, f"does not say which one: the key `{slot.selector}` is missing")
        return None
    if not isinstance(name, str):
        found.add((*path, slot.selector), f"expected a name, not {type(name).__name__}", "put a name in quotes")
        return None
    if slot.bare not in (None, *options) and is_a_place(slot.kind, name):
        found.add((*path, slot.selector), f"`{name}` is no component", f"did you mean `{slot.bare}: {name}`?")
        return None
    try:
        entry, cls = load_component(slot.kind, name, found.key(path), found.where((*path, slot.selector)))
    except PluginError as error:
        found.lacks(error)
        return None
    value = config(cls, {key: option for key, option in options.items() if key != slot.selector}, path, found)
    if isinstance(value, Component):
        found.resolve(path, slot.kind, entry, cls.target, slot.selector)
        return value
    return None


def components(slot: Slot, raw: Any, path: Path, found: Findings) -> Any:
    """Turn the raw value of a slot into its component, or into a tuple where it takes many; None in the place of a wrong one."""
    if not slot.many:
        return component(slot, raw, path, found)
    items = raw if isinstance(raw, list | tuple) else [raw]
    return tuple(component(slot, item, (*path, at), found) for at, item in enumerate(items))


def hooks(names: tuple[str, ...], found: Findings) -> None:
    """Find and import the hook plugins of a recipe, and add them to the resolved components."""
    for position, name in enumerate(names):
        path = ("hooks", position)
        try:
            entry = find("hooks", name, found.key(path), found.where(path))
            load(entry)
        except PluginError as error:
            found.lacks(error)
        else:
            found.resolve(path, "hooks", entry, entry.value)


def config(cls: type[Config], raw: Any, path: Path, found: Findings) -> Config | None:
    """Validate a mapping against a config class, its nested slots first; None after adding the problems."""
    if not isinstance(raw, Mapping):
        found.add(path, f"expected a mapping of options, not {type(raw).__name__}")
        return None
    values, before = dict(raw), len(found.problems)
    for name, slot in nested_slots(cls).items():
        if values.get(name) is not None:
            values[name] = components(slot, values[name], (*path, name), found)
    if len(found.problems) > before:
        return None
    try:
        made = _validated(cls, values, path, found)
    except ValidationError as error:
        note(error, path, values, found, cls)
        return None
    for name in (name for name, value in values.items() if _counted(value, getattr(made, name, None))):
        found.add((*path, name), f"input should be a number, and no boolean (got {values[name]!r:.60})")
    return made if len(found.problems) == before else None


def _validated(cls: type[Config], values: dict[str, Any], path: Path, found: Findings) -> Config:
    """Return a config of these values; of what was taken back, null stays only where it is a value."""
    try:
        return cls.model_validate(values, context={"folder": found.folder})
    except ValidationError as error:
        void = {name for name in values if (*path, name) in found.taken_back and values[name] is None}
        void &= {item["loc"][0] for item in error.errors() if item["loc"]}
        if not void:
            raise
    return _validated(cls, {name: value for name, value in values.items() if name not in void}, path, found)


def _counted(given: Any, made: Any) -> bool:
    """Return whether a boolean became a number, since pydantic accepts it as 0 or 1."""
    if isinstance(given, list | tuple) and isinstance(made, list | tuple):
        return any(map(_counted, given, made))
    return isinstance(given, bool) and type(made) in (int, float)


def nested_slots(cls: type[Config]) -> dict[str, Slot]:
    """Return the fields of a config class that name components, each with its slot; `many` where the field is a list."""
    found = ((name, [*info.metadata, *_slots_in(info.annotation, False)]) for name, info in cls.model_fields.items())
    return {name: item for name, items in found for item in items if isinstance(item, Slot)}


def _slots_in(annotation: Any, many: bool) -> list[Slot]:
    metadata = annotation.__metadata__ if get_origin(annotation) is Annotated else ()
    slots = [replace(item, many=many) for item in metadata if isinstance(item, Slot)]
    many = many or get_origin(annotation) in (list, tuple)
    return slots + [slot for argument in get_args(annotation) for slot in _slots_in(argument, many)]


def plain(kind: Any, raw: Any, path: Path, found: Findings) -> Any:
    """Validate a value that is no component."""
    if isinstance(kind, type) and issubclass(kind, Config):
        return config(kind, raw if raw is not None else {}, path, found)
    try:
        return TypeAdapter(kind).validate_python(raw)
    except ValidationError as error:
        note(error, path, raw, found, None)
        return None


def named_elsewhere(key: str, classes: Iterable[type[Config]]) -> str:
    """Return the option, or options of a class, that other software names so, as docstrings say: "`num_generations` in TRL"."""
    says = re.compile(rf"`{re.escape(key)}`(,\s`\w+`)* in\s")
    said = ([name for name, info in cls.model_fields.items() if says.search(info.description or "")] for cls in classes)
    return next(("`, `".join(names) for names in said if names), "")


def advised(key: str, near: str, found: Findings) -> tuple[str, str]:
    """Return why a key that no component has is wrong, and what to do, where `near` is the most similar one that is right.

    `gym.advice` leads to `advise(key, near) -> (why, what to do)`, or None where it knows nothing, or nothing better.
    What it raises, or importing it, is a problem of its own in `found`, once for each package, and others are asked.
    """
    for entry in entries("advice"):
        said = any(problem.where == entry.title for problem in found.problems)
        try:
            if told := load(entry)(key, near):
                why, fix = map(str, told)
                return why, fix
        except PluginError as error:
            found.problems += [] if said else error.problems
        except Exception as error:  # code of a plugin, which may be anybody's
            raised = f"{entry.value}, asked about the key `{key}`, raised {type(error).__name__}: {reason(error)}"
            found.problems += [] if said else [Problem(raised, entry.title, fix=f"update or uninstall {entry.dist}")]
    return "unknown key", f"did you mean `{near}`?" if near else ""


def _instead(path: Path, cls: type[Config] | None, found: Findings) -> tuple[str, str]:
    """Return why a key that these options lack is wrong, and what to write: here, in another section, or all that there is."""
    key, own, chosen = str(path[-1]), list(cls.model_fields) if cls else [], found.chosen()
    if meant := named_elsewhere(key, [cls] if cls else []):
        return "unknown key", f"did you mean `{meant}`?"
    homes = {section: named_elsewhere(key, [other]) for section, other in chosen.items()}
    homes |= {section: key for section, other in chosen.items() if key in other.model_fields}
    alike = SLOTS[str(path[0])].kind if len(path) == 2 and path[0] in SLOTS else ""
    if any(homes[section] for section in homes.keys() - {"train"}) and (others := having(alike, key)):
        return (
            f"an option of {', '.join(f'`{name}`' for name in others)}, not of this one",
            "leave it out, or name one of them",
        )
    there = [f"`{section}.{option}`" for section, option in homes.items() if option]
    if there or key in SECTIONS:
        return "unknown key", f"did you mean {' or '.join(there) or f'the section `{key}`'}?"
    why, fix = advised(key, nearest(key, own, cutoff=0.75), found) if chosen else ("unknown key", "")
    near = f"did you mean `{like}`?" if (like := nearest(key, own)) else ""
    return why, fix or near or f"{cls.__name__ if cls else 'it'} has {', '.join(own) or 'no options'}"


def note(error: ValidationError, path: Path, raw: Any, found: Findings, cls: type[Config] | None) -> None:
    """Turn errors of pydantic into problems with file, line, key and advice."""
    wrong: dict[Path, dict[str, str]] = {}  # where, why, and what was given
    told: list[Path] = []
    for item in error.errors(include_url=False, include_context=False, include_input=True):
        keys = _keys(item["loc"], raw)
        location = (*path, *keys)
        if item["type"] == "extra_forbidden":
            found.add(location, *_instead(location, owner(cls, keys[:-1]), found))
            told.append(location)
        elif item["type"] == "missing":
            found.add((*location, item["loc"][-1]), "is required")
            told.append((*location, item["loc"][-1]))
        else:
            why = item["msg"].removeprefix("Value error, ").partition(", unable to")[0]
            why = why.replace("a valid tuple", "a list")
            given = f" (got {item['input']!r:.60})" if not isinstance(item["input"], dict | Config) else ""
            wrong.setdefault(location, {})[why[:1].lower() + why[1:]] = given
    for location, reasons in wrong.items():
        if not any(other[: len(location)] == location != other for other in (*wrong, *told)):  # else something in it is
            why = " or ".join(reasons).replace(" or input should be ", " or ")
            found.add(location, why + [*reasons.values()][-1])


def _keys(location: Path, raw: Any) -> Path:
    """Return a location of pydantic without the names of the types that it tried for a union."""
    kept: Path = ()
    for part in location:
        held = raw if isinstance(raw, Mapping) else dict(enumerate(raw)) if isinstance(raw, list | tuple) else {}
        if part in held:
            kept, raw = (*kept, part), held[part]
    return kept

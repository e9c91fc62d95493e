"""Recipes: read from a file or a mapping, validated, and resolved to components. `gym_core.execution` runs them."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gym_core import dialect, kinds, sections
from gym_core.component import Component, Config
from gym_core.discovery import entries, installed, named
from gym_core.errors import GymError, PluginError, Problem, RecipeError
from gym_core.files import expanded
from gym_core.sections import SECTIONS, SLOTS, Findings, Resolved
from gym_core.train import Train
from gym_core.yamlfile import parse_scalar, read_yaml

#: Sections that may differ when a run is resumed, as `gym_core.component.Config.changeable` options of the others may.
CHANGEABLE = {"output", "export", "callbacks", "distributed"}
LENGTH = ("train.epochs", "train.max_steps")  #: keys of the length of a run, which may be made longer

Names = Mapping[sections.Path, tuple[str, str]]  #: by the place of a component, the key of its name, and the name
Chosen = Callable[[Config], Collection[str]]  #: options that are written


@dataclass(frozen=True)
class Recipe:
    """The validated sections of a recipe and the components they resolved to."""

    algorithm: kinds.Algorithm
    model: kinds.Backend | None
    data: Component | None
    adapter: Component | None
    optimizer: Component | None
    scheduler: Component | None
    quantization: kinds.Quantizer | None
    distributed: kinds.Strategy | None
    export: tuple[kinds.Exporter, ...]
    callbacks: tuple[Component, ...]
    hooks: tuple[str, ...]
    train: Train
    output: str
    resolved: tuple[Resolved, ...]

    def canonical(self, everything: bool = False) -> dict[str, Any]:
        """Return the recipe in its canonical form, with names that are clear here: the values set, or all with `everything`."""
        names = {item.path: (item.selector, _told(item)) for item in self.resolved}
        return self._written(names, lambda part: type(part).model_fields if everything else part.model_fields_set)

    def settings(self) -> dict[str, Any]:
        """Return every value that can change a number of the run, by dotted key; names without their distribution."""
        names = {item.path: (item.selector, item.name) for item in self.resolved}
        return _flatten(self._written(names, lambda part: type(part).model_fields.keys() - part.changeable, CHANGEABLE))

    def used(self) -> list[tuple[str, str, str, str]]:
        """Return kind, name, distribution and version of every component and hook that can change a number of the run."""
        some = (item for item in self.resolved if item.path[0] not in CHANGEABLE)
        return sorted((item.kind, item.name, item.dist, item.version) for item in some)

    def _written(self, names: Names, chosen: Chosen, without: Collection[str] = ()) -> dict[str, Any]:
        some = (section for section in SECTIONS if section not in without)
        written = {section: _dump(getattr(self, section), (section,), names, chosen) for section in some}
        return {section: value for section, value in written.items() if value not in (None, [], {})}

    def fingerprint(self) -> str:
        """Return a hash of `settings` without the length of the run, and of what is `used`."""
        settings = {key: value for key, value in self.settings().items() if key not in LENGTH}
        return hashlib.sha256(json.dumps([settings, self.used()], sort_keys=True).encode()).hexdigest()[:16]

    def longer(self, before: Mapping[str, Any]) -> bool:
        """Whether this run is longer than one with these `settings`, and is the same but for that."""
        epochs, steps = (before.get(key) for key in LENGTH)
        if epochs is None or self.train.epochs < epochs:
            return False
        if self.train.max_steps and steps:
            return self.train.max_steps > steps
        return self.train.max_steps == steps and self.train.epochs > epochs

    def check(self) -> None:
        """Raise GymError with everything that components refer to and that is missing, and with incompatible sections."""
        found: list[GymError] = []
        parts = (*self.export, *self.callbacks, *(getattr(self, name) for name, slot in SLOTS.items() if not slot.many))
        for check in [*(part.check for part in parts if part), lambda: self.algorithm.check_recipe(self)]:
            try:
                check()
            except GymError as error:
                found.append(error)
        if found:
            raise type(found[0])([problem for error in found for problem in error.problems])


def load_recipe(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe in any dialect from a YAML file or a mapping, apply `key=value` overrides, and validate it.

    Raises RecipeError with every problem found, or PluginError where all of them are plugins that are missing or broken.
    """
    if isinstance(overrides, str | Mapping):
        fix = 'give a list: load_recipe(source, ["train.epochs=2"])'
        raise RecipeError(f"overrides are `key=value` texts, and no {type(overrides).__name__}", fix=fix)
    if isinstance(source, Mapping):
        data, found = _as_read(source), Findings()
    else:
        data, marks = read_yaml(Path(source))
        found = Findings(marks, folder=Path(source).parent)
    for override in overrides:
        _override(data, override, found)
    return _validate(dialect.translate(data, found), found)


def _as_read(value: Any) -> Any:
    """Return a value of Python as a file would give it, such as text for a path. Raises RecipeError for a key that is no text."""
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise RecipeError(f"the key {wrong[0]!r:.60} is no text", fix="put it in quotes")
        return {key: _as_read(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_read(item) for item in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _override(data: dict[str, Any], override: str, found: Findings) -> None:
    """Set what `key=value` says in the data, and mark that the command line said it."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        found.problems.append(Problem(f"`{override}` is not key=value", "command line"))
        return
    path, value = tuple(key.split(".")), parse_scalar(text)
    created = [path[:end] for end in range(1, len(path)) if _at(data, path[:end]) is None]
    if value is None and _at(data, path) is not None:
        found.taken_back.add(path)
    dialect.apply_override(data, key, value)
    given = [path, *(mark for mark in found.marks if mark[: len(path)] == path)]
    found.marks.update(dict.fromkeys([*created, *given], "command line"))


def _at(data: Any, path: sections.Path) -> Any:
    """Return the value at a key path; None where there is none."""
    for part in path:
        data = data.get(part) if isinstance(data, Mapping) else None
    return data


def _validate(raw: Mapping[str, Any], found: Findings) -> Recipe:
    """Build the sections of a recipe in its canonical form. Raises every problem that was found, at once."""
    found.chosen = lambda: dialect.chosen_classes(raw)
    built: dict[str, Any] = {}
    for section, slot in SLOTS.items():
        built[section] = () if slot.many else None
        if raw.get(section) is not None or (slot.implied and (slot.kind, slot.default) in installed().named):
            built[section] = sections.components(slot, raw.get(section), (section,), found)
    for section, default in (("train", None), ("hooks", ()), ("output", "")):
        value = default if raw.get(section) is None else raw[section]
        built[section] = sections.plain(sections.VALUES[section], value, (section,), found)
    if re.search(r"\$[\w{]", built["output"] or ""):  # a folder named `$HOME` is nobody's intention
        fix = 'write the path out, or give it on the command line: output="$NAME/..."'
        found.add(("output",), "names an environment variable, and recipes read none", fix)
    if raw.get("output") == "":
        found.add(("output",), "is empty", "name a folder, or leave the key out: it is then runs/ALGORITHM")
    try:
        expanded(built["output"] or "")
    except RecipeError as error:
        found.add(("output",), error.problems[0].why, error.problems[0].fix)
    sections.hooks(built["hooks"] or (), found)
    _check_algorithm(built, raw, found)
    if found.problems:
        problems = sorted(set(found.problems), key=lambda problem: (_line(problem.where), problem.key))
        raise PluginError(problems) if set(problems) <= found.plugins else RecipeError(problems)
    built["output"] = built["output"] or f"runs/{_named(raw['algorithm'])}"
    recipe = Recipe(resolved=tuple(found.resolved), **built)
    _check_written(recipe)
    return recipe


def _check_algorithm(built: Mapping[str, Any], raw: Mapping[str, Any], found: Findings) -> None:
    """Note where no algorithm is named, or one without a section that it needs."""
    if raw.get("algorithm") is None and not found.plugins:
        have = ", ".join(sorted({entry.name for entry in entries("algorithms")})) or "none is installed"
        found.add(("algorithm",), "is required", f"installed: {have}")
    for section in built["algorithm"].needs if built["algorithm"] else ():
        if built[section] is None and raw.get(section) is None:
            found.add((section,), f"algorithm `{_named(raw['algorithm'])}` needs this section")


def _check_written(recipe: Recipe) -> None:
    """Raise RecipeError or PluginError for a value that `run.json` cannot hold."""
    for key, value in _flatten(recipe.canonical(everything=True)).items():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            fix = "choose another name: run.json and the logs are UTF-8"
            raise RecipeError("holds bytes that are no UTF-8 text", key=key, fix=fix) from None
        except (TypeError, ValueError, RecursionError):
            fix = "update the plugin or leave it out: it must be text, a number, a list, a mapping, or a gym_core.Config of them"
            raise PluginError(f"a `{type(value).__name__}` cannot be written to run.json", key=key, fix=fix) from None


def _line(where: str) -> tuple[str, int]:
    file, _, line = where.rpartition(":")
    return (file, int(line)) if line.isdigit() else (where, 0)


def _named(raw: Any) -> str:
    return str(raw.get("name", "run") if isinstance(raw, Mapping) else raw).rpartition("/")[2]


def _told(item: Resolved) -> str:
    """Return the name that refers to this component with the plugins installed now."""
    alone = [entry.dist for entry in named(item.kind, item.name)] == [item.dist]
    return item.name if alone else f"{item.dist}/{item.name}"


def _dump(value: Any, path: sections.Path, names: Names, chosen: Chosen) -> Any:
    if isinstance(value, str) and path in names:  # a hook
        return names[path][1]
    if isinstance(value, Config):
        some = chosen(value)
        options = [name for name in type(value).model_fields if name in some]
        body = {name: _dump(getattr(value, name), (*path, name), names, chosen) for name in options}
        return dict([names[path]]) | body if path in names else body
    if isinstance(value, list | tuple):
        return [_dump(item, (*path, index), names, chosen) for index, item in enumerate(value)]
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)  # YAML writes no types derived from it, such as pydantic's ByteSize
    return str(value) if isinstance(value, Path) else value


def _flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        items = [(f"{prefix}.{key}" if prefix else str(key), item) for key, item in value.items()]
    elif isinstance(value, list):
        items = [(f"{prefix}[{index}]", item) for index, item in enumerate(value)]
    else:
        return {prefix: value}
    return {key: leaf for name, item in items for key, leaf in _flatten(item, name).items()}

"""Who made a value: the packages, versions, options and code that a cache must name, and that an error must name.

Nothing here knows rows or tokens; other packages name what they keep with it too.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.machinery import all_suffixes
from importlib.metadata import PackageNotFoundError, packages_distributions, requires, version
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from gym_core import Component, DataError, GymError, PluginError
from gym_core.discovery import Entry, entries, installed
from gym_core.loading import load

KERNEL = "gym_core"
DATA = (".jinja", ".json", ".toml", ".txt", ".yaml", ".yml")  #: of files that code reads: templates, tables
_NAME = re.compile(r"[\w.-]+")


def identity(component: Component) -> dict[str, Any]:
    """Return what decides what a component does, as plain data: its class, its options and whose code runs.

    Components among its options are named in the same way.
    """
    cls = type(component)
    return {
        "class": f"{cls.__module__}:{cls.__qualname__}",
        "options": {name: _plain(getattr(component, name)) for name in cls.model_fields},
        "makers": [maker(package) for package in _packages(cls)],
    }


def maker(package: str) -> dict[str, Any]:
    """Return what names the code of an importable package: its distributions, what they require, and a hash of its files.

    Code that cannot be read, such as a notebook's, is named differently each time: what it made is never found again.
    """
    named = read_maker(package)
    return named if named["code"] else named | {"code": uuid.uuid4().hex}


def called(component: Component) -> str:
    """Return what an error calls a component: its kind, its name in recipes and its package with the version."""
    cls = type(component)
    noun = cls.kind.removesuffix("s")
    package = cls.__module__.partition(".")[0]
    for entry in entries(cls.kind):
        if entry.value.partition(":")[0].partition(".")[0] == package and load(entry) is cls:
            return f"{noun} `{entry.name}` of {entry.dist} {entry.version}"
    owners = " and ".join(" ".join(each) for each in maker(package)["distributions"]) or f"module {cls.__module__}"
    return f"{noun} `{cls.__name__}` of {owners}"


def name_of(component: Component) -> str:
    """Return the name of a component in recipes."""
    return called(component).split("`")[1]


@contextmanager
def answering(component: Component, doing: str, name: str = "") -> Iterator[None]:
    """Let what goes wrong inside name the component that was at work, its package and, of a source, its `name`.

    Errors that say where they lie go through; whatever else a component raises becomes a PluginError, or a DataError where the
    system could not read something.
    """
    try:
        yield
    except GymError:
        raise
    except Exception as error:  # a component is foreign code: it can raise whatever Python can
        raise blamed(component, doing, error, name) from error


def blamed(component: Component, doing: str, error: Exception, name: str = "") -> GymError:
    """Return the error of a component that raised something unexpected, as `answering` does."""
    reason = (str(error).strip().splitlines() or ["no message"])[0][:200]
    kind = DataError if isinstance(error, OSError) else PluginError
    who = called(component)
    return kind(
        f"{doing} raised {type(error).__name__}: {reason}",
        where=f"{name} ({who})" if name else who,
        fix="see to what it reads" if kind is DataError else f"report it to {who.partition('` of ')[2]}",
    )


@cache
def read_maker(package: str) -> dict[str, Any]:
    """Return the distributions that bring a package, and all that these need, each with its version."""
    owners = sorted(_owners(package))
    needed = sorted({need for name, _ in owners for need in _required(name)})
    return {
        "package": package,
        "distributions": [list(owner) for owner in owners],
        "requires": {need: _version(need) for need in needed},
        "code": _code(package),
    }


def _packages(cls: type[Component]) -> list[str]:
    """Return the top-level packages whose code decides what a component of this class does, the kernel's aside."""
    modules = [base.__module__ for base in cls.__mro__ if issubclass(base, Component)]
    tops = {module.partition(".")[0] for module in [*modules, cls.target.partition(":")[0]]}
    return sorted(tops - {KERNEL, ""})


def _owners(package: str) -> set[tuple[str, str]]:
    """Return name and version of the distributions that bring a top-level package."""

    def brings(entry: Entry) -> bool:
        return entry.value.partition(":")[0].partition(".")[0] == package

    found = {(entry.dist, entry.version) for group in installed().entries.values() for entry in group if brings(entry)}
    return found or {(name, version(name)) for name in packages_distributions().get(package, ())}


def _required(distribution: str) -> set[str]:
    """Return the names of what a distribution requires, extras aside."""
    try:
        lines = requires(distribution) or []
    except PackageNotFoundError:
        return set()
    plain = [line for line in lines if "extra ==" not in line]
    return {found.group() for line in plain if (found := _NAME.match(line))}


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:  # wanted on another system only
        return None


def _code(package: str) -> str:
    """Return a hash of every file of a package that Python can import, and of `DATA`; empty where there are none."""
    digest, files = hashlib.sha256(), 0
    for root in _roots(package):
        for file in sorted(root.rglob("*")) if root.is_dir() else [root]:
            inside = file.relative_to(root).as_posix()
            if file.name.endswith((*all_suffixes(), *DATA)) and "__pycache__" not in inside and file.is_file():
                digest.update(f"{inside}\0{file.stat().st_size}\0".encode())
                digest.update(file.read_bytes())
                files += 1
    return digest.hexdigest() if files else ""


def _roots(package: str) -> list[Path]:
    """Return the folders of a package, or the one file of a module."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # `__main__` has none
        spec = None
    if spec is None:
        file = getattr(sys.modules.get(package), "__file__", None)
        return [Path(file)] if file else []
    folders = spec.submodule_search_locations
    return [Path(folder) for folder in folders] if folders else [Path(spec.origin)] if spec.origin else []


def _plain(value: Any) -> Any:
    if isinstance(value, Component):
        return identity(value)
    if isinstance(value, BaseModel):
        return {name: _plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((_plain(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return to_jsonable_python(value)

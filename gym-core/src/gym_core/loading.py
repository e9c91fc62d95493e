"""Choosing a plugin by name and importing it: the border where other people's code enters.

Every way in which a plugin can fail becomes a PluginError that names the distribution; nothing else is hurt.
"""

from __future__ import annotations

import difflib
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

import gym_core
from gym_core import targets
from gym_core.component import Component, load_object
from gym_core.discovery import Entry, canonical, entries, read_headers
from gym_core.errors import PluginError
from gym_core.kinds import KINDS

#: How long a plugin's config module may take to import; it should take a tenth of a second.
IMPORT_SECONDS = float(os.environ.get("GYM_IMPORT_SECONDS", "30"))


@cache
def base_class(kind: str) -> type[Component]:
    """Return the base class of a kind: the kernel's own, or the one a plugin adds through `gym.kinds`."""
    if kind in KINDS:
        return KINDS[kind]
    found: type[Component] = load_object(find("kinds", kind).value)
    return found


@cache
def catalogue() -> dict[str, str]:
    """Return the distribution that brings each first-party component, by `kind/name`; for error messages alone."""
    text = (Path(__file__).parent / "catalogue.txt").read_text(encoding="utf-8")
    return dict(line.split() for line in text.splitlines() if line and not line.startswith("#"))


def find(kind: str, name: str, key: str = "", where: str = "") -> Entry:
    """Return the one entry point of that kind and name; `name` may be `distribution/name`.

    Raises PluginError when there is none, or when several distributions bring it.
    """
    dist, _, short = name.rpartition("/")
    found = [entry for entry in entries(kind) if entry.name == short and (not dist or entry.dist == canonical(dist))]
    if len(found) == 1:
        return found[0]
    noun = base_class(kind).__name__.lower() if kind in KINDS else kind
    if found:
        names = " and ".join(f"{entry.dist} {entry.version}" for entry in found)
        fix = " or ".join(f"`{entry.qualified}`" for entry in found)
        raise PluginError(f"two plugins bring the {noun} `{short}`: {names}", where=where, key=key, fix=f"write {fix}")
    package = catalogue().get(f"{kind}/{short}")
    near = difflib.get_close_matches(short, [entry.name for entry in entries(kind)], n=1)
    if package:
        fix = f"pip install {package}"
    elif near:
        fix = f"did you mean `{near[0]}`?"
    else:
        known = sorted({entry.name for entry in entries(kind)}) or ["none"]
        have = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
        fix = f"installed: {have}; `gym plugins list` shows all"
    raise PluginError(f"no installed plugin brings the {noun} `{name}`", where=where, key=key, fix=fix)


@cache
def load(entry: Entry) -> Any:
    """Import what an entry point leads to. Checks first that its distribution accepts this gym-core.

    Raises PluginError when it does not, when the import fails, or when it takes longer than IMPORT_SECONDS.
    """
    where = f"{entry.dist} {entry.version} (gym.{entry.kind}: {entry.name})"
    _check_requirement(entry, where)
    try:
        with _time_limit(IMPORT_SECONDS):
            return load_object(entry.value)
    except TimeoutError:
        raise PluginError(
            f"importing {entry.value} did not end within {IMPORT_SECONDS:g} s",
            where=where,
            fix=f"update or uninstall {entry.dist}",
        ) from None
    except ModuleNotFoundError as error:
        raise PluginError(
            f"it needs the module `{error.name}`, which is not installed",
            where=where,
            fix=_missing(entry) or f"reinstall {entry.dist}",
        ) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too, and what a panic in an extension module becomes
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else "no message"
        raise PluginError(
            f"importing {entry.value} raised {type(error).__name__}: {reason}",
            where=where,
            fix=f"update or uninstall {entry.dist}",
        ) from error


def load_component(kind: str, name: str, key: str = "", where: str = "") -> tuple[Entry, type[Component]]:
    """Find and import a component class. Raises PluginError, also when it is not a component of that kind."""
    entry = find(kind, name, key, where)
    loaded, base = load(entry), base_class(kind)
    if not (isinstance(loaded, type) and issubclass(loaded, base)):
        raise PluginError(
            f"{entry.value} is not a subclass of {base.__module__}.{base.__name__}",
            where=f"{entry.dist} {entry.version} (gym.{kind}: {entry.name})",
            fix=f"update or uninstall {entry.dist}",
        )
    if loaded.target and not targets.exists(loaded.target):
        raise PluginError(
            f"{entry.value} points at `{loaded.target}`, which does not exist",
            where=f"{entry.dist} {entry.version} (gym.{kind}: {entry.name})",
            fix=f"mend its `target`, or update or uninstall {entry.dist}",
        )
    return entry, loaded


def load_all(kind: str) -> Iterator[tuple[Entry, type[Component] | PluginError]]:
    """Import every component of a kind; a broken one yields its error in place of the class."""
    for entry in entries(kind):
        try:
            yield load_component(kind, entry.qualified)
        except PluginError as error:
            yield entry, error


def _check_requirement(entry: Entry, where: str) -> None:
    for requirement in _requirements(entry):
        if canonical(requirement.name) == "gym-core" and not requirement.specifier.contains(
            gym_core.__version__, prereleases=True
        ):
            raise PluginError(
                f"it needs gym-core {requirement.specifier}, and this is {gym_core.__version__}",
                where=where,
                fix=f"pip install --upgrade {entry.dist} gym-core",
            )


def _requirements(entry: Entry) -> list[Requirement]:
    try:
        lines = read_headers(entry.metadata).get("Requires-Dist", [])
        return [
            requirement
            for requirement in map(Requirement, lines)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        ]
    except (OSError, UnicodeDecodeError, InvalidRequirement):  # `gym plugins check` reports the metadata themselves
        return []


def _missing(entry: Entry) -> str:
    absent = []
    for requirement in _requirements(entry):
        try:
            version(requirement.name)
        except PackageNotFoundError:
            absent.append(requirement.name)
    return f"pip install {' '.join(absent)}" if absent else ""


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in this thread after some time; does nothing off the main thread, where no signal arrives."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def ring(signum: int, frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

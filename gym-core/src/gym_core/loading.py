"""Finds plugins by name and imports them, the only place that does. A failure is a PluginError that names the distribution."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from gym_core import targets
from gym_core.component import Component, load_object
from gym_core.discovery import Entry, catalogue, entries, installed, named, nearest
from gym_core.errors import PluginError, printable
from gym_core.kinds import KINDS
from gym_core.metadata import canonical
from gym_core.requirements import unmet

#: How long a plugin's config module may take to import; it should take a tenth of a second.
IMPORT_SECONDS = float(os.environ.get("GYM_IMPORT_SECONDS", "30"))
FACADE = (
    10  #: times as long for a name of the Python API: with its module may come torch, from a disk that is cold or busy
)


@cache
def base_class(kind: str) -> type[Component]:
    """Return the base class of a kind: of the kernel, or of a plugin through `gym.kinds`."""
    return KINDS[kind] if kind in KINDS else load(find("kinds", kind))


def find(kind: str, name: str, key: str = "", where: str = "") -> Entry:
    """Return the entry point of a name or `distribution/name`. Raises PluginError for none, a disabled one, or several."""
    dist, _, short = name.rpartition("/")
    all_of = installed().named.get((kind, short), [])
    found = [entry for entry in all_of if entry.dist == canonical(dist)] if dist else named(kind, short)
    if len(found) == 1:
        return found[0]
    noun = f"{kind.removesuffix('ies')}y" if kind.endswith("ies") else kind.removesuffix("s")
    ways = " or ".join(f"`{entry.qualified}`" for entry in all_of[:3])
    if found:
        names = " and ".join(f"{entry.dist} {entry.version}" for entry in found[:3])
        fix = f"write {ways}; or for every recipe: `gym plugins choose {kind}/{short} {found[0].dist}`"
        raise PluginError(f"two plugins bring the {noun} `{short}`: {names}", where=where, key=key, fix=fix)
    why, fix = f"no installed plugin brings the {noun} `{name}`", f"write {ways}" if ways else _advice(kind, short)
    off = [entry for entry in installed().disabled if (entry.kind, entry.name) == (kind, short)]
    if all_of and not dist:
        choices = installed().choices
        file, dist = choices.files[f"{kind}/{short}"], choices.origin(kind, short)
        why, fix = f"{file} says that `{short}` is of {dist}, which does not bring it", f"pip install {dist}"
    elif off and canonical(dist) in ("", off[0].dist):
        file = installed().choices.disabled(off[0].dist, short)
        why, fix = f"the {noun} `{off[0].qualified}` is disabled in {file}", f"gym plugins enable {off[0].dist}"
    raise PluginError(why, where=where, key=key, fix=fix)


def _advice(kind: str, name: str) -> str:
    """Return advice for a name that no plugin provides."""
    if package := catalogue().get(f"{kind}/{name}") or catalogue().get(f"absent/{kind}/{name}"):
        return package if " " in package else f"pip install {package}"
    if near := nearest(name, (entry.name for entry in entries(kind))):
        return f"did you mean `{near}`?"
    known = sorted({entry.name for entry in entries(kind)}) or ["none"]
    return f"installed: {', '.join(known[:10])}{', ...' if len(known) > 10 else ''}; `gym plugins list` shows all"


def is_a_place(kind: str, name: str) -> bool:
    """Return whether the name of a component, which nobody brings, looks like a file or an id of the Hub."""
    dist, _, short = name.rpartition("/")
    known = (kind, short) in installed().named or f"{kind}/{short}" in catalogue()
    known = known or any(entry.dist == canonical(dist) for entry in entries(kind))
    return not known and not {*"./"}.isdisjoint(name)


@cache
def load(entry: Entry) -> Any:
    """Import what an entry point names. Raises PluginError for unmet requirements, and an import that fails or takes too long."""
    _check_requirements(entry)
    fix = f"update or uninstall {entry.dist}"
    seconds = IMPORT_SECONDS * (FACADE if entry.kind == "facade" else 1)
    try:
        with _time_limit(seconds) as stopped, _left_as_found():
            return load_object(entry.value)
    except BaseException as error:  # SystemExit too, and what a panic in an extension module becomes
        if stopped:  # by the user, not by the plugin
            raise
        why = f"importing {entry.value} raised {type(error).__name__}: {reason(error)}"
        if isinstance(error, TimeoutError):
            why = (
                f"importing {entry.value} did not end within {seconds:g} s (GYM_IMPORT_SECONDS; more where it is busy)"
            )
        elif isinstance(error, ModuleNotFoundError):
            why, fix = f"it needs the module `{error.name}`, which is not installed", f"reinstall {entry.dist}"
        raise PluginError(why, where=entry.title, fix=fix) from error


def reason(error: BaseException) -> str:
    """Return the first line of the message of an exception, whose `__str__` may be code of a plugin."""
    try:
        return printable(str(error)[:1000].strip().partition("\n")[0], 200) or "no message"
    except BaseException:
        return "no message"


def load_component(kind: str, name: str, key: str = "", where: str = "") -> tuple[Entry, type[Component]]:
    """Find and import a component class. Raises PluginError, also when it is not a component of that kind."""
    entry = find(kind, name, key, where)
    cls, base = load(entry), base_class(kind)
    if not (isinstance(cls, type) and base in type.mro(cls)):  # a metaclass may answer issubclass as it likes
        why = f"{entry.value} is not a subclass of {base.__module__}.{base.__name__}"
        raise PluginError(why, where=entry.title, fix=f"update or uninstall {entry.dist}")
    if lost := targets.missing(cls):
        why = f"{entry.value} points at `{lost[1]}`, which does not exist or cannot be read"
        raise PluginError(why, where=entry.title, fix=f"mend its `{lost[0]}`, or update or uninstall {entry.dist}")
    return entry, cls


def having(kind: str, option: str) -> list[str]:
    """Return the names of the components of a kind that have an option; those that cannot be imported are left out."""
    found = []
    for entry in entries(kind):
        with suppress(PluginError):
            found += [entry.name] if option in load_component(kind, entry.qualified)[1].model_fields else []
    return found


def _check_requirements(entry: Entry) -> None:
    if lacking := unmet(entry.dist):
        first = lacking[0]
        owner = "it" if first.owner == entry.dist else f"{first.owner}, which it rests on,"
        more = f" and {len(lacking) - 1} more: see `gym doctor`" if len(lacking) > 1 else ""
        install = " ".join(f"'{item.needs}'" for item in lacking[:3])
        fix = f"pip install {install}, or another version of {first.owner}"
        raise PluginError(f"{owner} needs {first.needs} ({first.why}){more}", where=entry.title, fix=fix)


@contextmanager
def _left_as_found() -> Iterator[None]:
    """Restore the working directory and the umask after an import."""
    here, mask = Path.cwd(), os.umask(0o77)
    os.umask(mask)
    try:
        yield
    finally:
        os.chdir(here)
        os.umask(mask)


@contextmanager
def _time_limit(seconds: float) -> Iterator[list[int]]:
    """Raise TimeoutError after some time, in the main thread, which gets signals; fill the list yielded on Ctrl-C."""
    pressed: list[int] = []
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield pressed
        return

    def ring(signum: int, frame: object) -> None:
        raise TimeoutError

    def press(signum: int, frame: FrameType | None) -> None:
        pressed.append(signum)
        if callable(interrupt):
            interrupt(signum, frame)

    alarm, interrupt = signal.signal(signal.SIGALRM, ring), signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, press)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield pressed
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)
        signal.signal(signal.SIGINT, interrupt)
